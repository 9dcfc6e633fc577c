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

func TestRestartBackoffOfAlternatingProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(record)
		r := newRegistry(newMetrics(), slog.New(slog.NewTextHandler(log, nil)))
		if err := r.apply(new(config.Config)); err != nil {
			t.Fatal(err)
		}
		defer r.close()
		e := llmserver.Endpoint{ID: "a", URL: "http://a"}
		// renew waits for the reload and returns how long that took.
		renew := func() time.Duration {
			began, before := time.Now(), r.table.Load()
			r.onRestart(e)
			for synctest.Wait(); r.table.Load() == before; synctest.Wait() {
				time.Sleep(100 * time.Millisecond)
			}
			return time.Since(began)
		}
		for n, want := range []int{0, 1, 2, 4, 8, 16, 32, 60, 60} {
			if took := renew(); took != time.Duration(want)*time.Second {
				t.Errorf("reload %d came after %v; want %d s", n, took, want)
			}
			time.Sleep(time.Second)
		}
		text := log.take()
		if info, warn := strings.Count(text, "level=INFO"), strings.Count(text, "level=WARN"); info != 1 || warn != 8 {
			t.Errorf("logged %d restarts and %d alternations:\n%s", info, warn, text)
		}
		other := llmserver.Endpoint{ID: "a", URL: "http://of-another-model"}
		if wait := r.restarts.nextDelay(other.URL); wait != 0 {
			t.Errorf("another address has a delay of %v", wait)
		}
		time.Sleep(resetAfter)
		if took := renew(); took != 0 {
			t.Errorf("a minute later the delay is %v", took)
		}
		r.onRestart(e)
		r.onRestart(e) // closing the registry ends their delays
	})
}

// registryFor returns a registry with configuration c that logs to log.
func registryFor(t *testing.T, log *record, c *config.Config) *registry {
	r := newRegistry(newMetrics(), slog.New(slog.NewTextHandler(log, nil)))
	if err := r.apply(c); err != nil {
		t.Fatal(err)
	}
	return r
}

// A configuration applied during a restart's delay stays in force after the reload.
func TestRestartReloadsLatestConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := registryFor(t, new(record), configured(modelOn("before", refusing(1))))
		defer r.close()
		e := llmserver.Endpoint{ID: "a", URL: refusing(1)}
		r.onRestart(e)
		r.onRestart(e) // reloads in a second
		synctest.Wait()
		if err := r.apply(configured(modelOn("after", refusing(2)))); err != nil {
			t.Fatal(err)
		}
		table := r.table.Load()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if now := r.table.Load(); now == table || now.findModel("after") == nil || now.findModel("before") != nil {
			t.Error("the reload applied the old configuration, or did not happen")
		}
	})
}

func TestRestartLogsFailedReload(t *testing.T) {
	t.Setenv("BERTH_TEST_KEY", "key")
	synctest.Test(t, func(t *testing.T) {
		log, m := new(record), modelOn("m", refusing(1))
		m.Replicas[0].APIKeyEnv = "BERTH_TEST_KEY"
		r := registryFor(t, log, configured(m))
		defer r.close()
		table := r.table.Load()
		os.Unsetenv("BERTH_TEST_KEY")
		r.onRestart(llmserver.Endpoint{ID: "a", URL: refusing(1)})
		synctest.Wait()
		if text := log.take(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, "BERTH_TEST_KEY") || r.table.Load() != table {
			t.Errorf("logged:\n%s", text)
		}
	})
}

func TestRegistryClosedAppliesNothing(t *testing.T) {
	r := registryFor(t, new(record), configured())
	r.close()
	if err := r.apply(configured(modelOn("m", refusing(1)))); err != nil || r.table.Load().findModel("m") != nil {
		t.Errorf("a configuration was applied after close: %v", err)
	}
}

func TestRegistryHidesReplicaAddresses(t *testing.T) {
	m := modelOn("m", refusing(1), refusing(2), refusing(3))
	for _, i := range []int{0, 2} {
		m.Replicas[i].ID = strings.TrimPrefix(m.Replicas[i].URL, "http://") // like the default of config
	}
	f := serve(t, m)
	for range 2 {
		r := f.chat("m")
		if r.StatusCode != 503 || strings.Contains(r.body, "127.0.0") {
			t.Errorf("got %d %s", r.StatusCode, r.body)
		}
		for _, name := range []string{"replica 1:", "replica b:", "replica 3:"} {
			if !strings.Contains(r.body, name) {
				t.Errorf("%s does not name %s", r.body, name)
			}
		}
	}
	if f.state("127.0.0.1:1") != "down" {
		t.Error("the metrics do not show its address")
	}
}
