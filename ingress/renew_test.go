package ingress

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/config"
	"berth/llmserver"
)

func TestProcessesThatTakeTurnsAtOneAddressAreTakenOverEverMoreSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(record)
		r := newRegistry(quietTelemetry(), slog.New(slog.NewTextHandler(log, nil)))
		if err := r.apply(new(config.Config)); err != nil {
			t.Fatal(err)
		}
		defer r.close()
		e := llmserver.Endpoint{ID: "a", URL: "http://a"}
		// renew waits for the renewal and tells when it came.
		renew := func() time.Duration {
			began, before := time.Now(), r.table.Load()
			r.restarted(e)
			for synctest.Wait(); r.table.Load() == before; synctest.Wait() {
				time.Sleep(100 * time.Millisecond)
			}
			return time.Since(began)
		}
		for n, want := range []int{0, 1, 2, 4, 8, 16, 32, 60, 60} {
			if took := renew(); took != time.Duration(want)*time.Second {
				t.Errorf("renewal %d came after %v; want %d s", n, took, want)
			}
			time.Sleep(time.Second)
		}
		text := log.take()
		if info, warn := strings.Count(text, "level=INFO"), strings.Count(text, "level=WARN"); info != 1 || warn != 8 {
			t.Errorf("told %d restarts and %d alternations:\n%s", info, warn, text)
		}
		other := llmserver.Endpoint{ID: "a", URL: "http://of-another-model"}
		if wait := r.renewals.next(other.URL); wait != 0 {
			t.Errorf("another address waits %v", wait)
		}
		time.Sleep(calm)
		if took := renew(); took != 0 {
			t.Errorf("after a calm minute it took %v", took)
		}
		r.restarted(e)
		r.restarted(e) // the end of the registry ends their waits
	})
}

// registryFor returns a registry that goes by c and logs to log.
func registryFor(t *testing.T, log *record, c *config.Config) *registry {
	r := newRegistry(quietTelemetry(), slog.New(slog.NewTextHandler(log, nil)))
	if err := r.apply(c); err != nil {
		t.Fatal(err)
	}
	return r
}

// A configuration that is applied while a restarted replica waits for its turn stays in force after that.
func TestRenewalGoesByTheLatestConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registryFor(t, new(record), configured(modelOn("before", refusing(1))))
		defer r.close()
		e := llmserver.Endpoint{ID: "a", URL: refusing(1)}
		r.restarted(e)
		r.restarted(e) // taken over in a second
		synctest.Wait()
		if err := r.apply(configured(modelOn("after", refusing(2)))); err != nil {
			t.Fatal(err)
		}
		table := r.table.Load()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if now := r.table.Load(); now == table || now.find("after") == nil || now.find("before") != nil {
			t.Error("the renewal went by the configuration of before, or did not come")
		}
	})
}

func TestRenewalThatFailsIsLogged(t *testing.T) {
	t.Setenv("BERTH_TEST_KEY", "key")
	synctest.Test(t, func(t *testing.T) {
		log, m := new(record), modelOn("m", refusing(1))
		m.Replicas[0].APIKeyEnv = "BERTH_TEST_KEY"
		r := registryFor(t, log, configured(m))
		defer r.close()
		table := r.table.Load()
		os.Unsetenv("BERTH_TEST_KEY")
		r.restarted(llmserver.Endpoint{ID: "a", URL: refusing(1)})
		synctest.Wait()
		if text := log.take(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, "BERTH_TEST_KEY") || r.table.Load() != table {
			t.Errorf("logged:\n%s", text)
		}
	})
}

func TestRegistryThatIsClosedTakesNothingOver(t *testing.T) {
	r := registryFor(t, new(record), configured())
	r.close()
	if err := r.apply(configured(modelOn("m", refusing(1)))); err != nil || r.table.Load().find("m") != nil {
		t.Errorf("a configuration that came after the end was applied: %v", err)
	}
}

func TestClientsReadNoAddressOfAReplicaThatHasNoName(t *testing.T) {
	m := modelOn("m", refusing(1), refusing(2), refusing(3))
	for _, i := range []int{0, 2} {
		m.Replicas[i].ID = strings.TrimPrefix(m.Replicas[i].URL, "http://") // as config gives it
	}
	f := serve(t, m)
	for range 2 {
		r := f.chat("m")
		if r.StatusCode != 503 || strings.Contains(r.body, "127.0.0") {
			t.Errorf("got %d %s", r.StatusCode, r.body)
		}
		for _, name := range []string{"replica 1:", "replica b:", "replica 3:"} {
			if !strings.Contains(r.body, name) {
				t.Errorf("%s does not tell of %s", r.body, name)
			}
		}
	}
	if f.state("127.0.0.1:1") != "down" {
		t.Error("operators do not find it by its address")
	}
}
