package ingress

import (
	"log/slog"
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
		r := newRegistry(newMetrics(), slog.New(slog.NewTextHandler(log, nil)))
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
