package llmserver

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Three consecutive probe failures mark a replica down. A probe that could not be sent does not
// count, and one that times out while a response continues shows that the replica is alive.
func TestReplicaProbeFailuresAreCountedByKind(t *testing.T) {
	const fails, lost, alive = "fails", "not sent", "late, while a response goes on"
	for name, c := range map[string]struct {
		probes []string
		down   bool
	}{
		"one in between was not sent": {[]string{fails, fails, lost, fails}, true},
		"one in between shows life":   {[]string{fails, fails, alive, fails, fails}, false},
		"and then it fails again":     {[]string{fails, fails, alive, fails, fails, fails}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var r *Replica
			sent, over := 0, make(chan struct{})
			probe := func(ctx context.Context) error {
				if sent == len(c.probes) {
					close(over)
					<-ctx.Done()
					return ctx.Err()
				}
				sent++
				switch c.probes[sent-1] {
				case lost:
					return ErrExhausted
				case alive:
					r.health.bodyReads.Add(1)
					return lateProbe(ctx)
				default:
					return errors.New("/health returned 500")
				}
			}
			synctest.Test(t, func(t *testing.T) {
				fake := newFake(1)
				fake.probe = probe
				over = make(chan struct{})
				e := probedEndpoint
				e.ProbeEvery = 0
				p := &Pool{Dial: func(Endpoint) (Backend, error) { return fake, nil }}
				r = mustSet(t, p, e)[0]
				e.ProbeEvery = probedEndpoint.ProbeEvery
				r.describe(e)
				ctx, stop := context.WithCancel(t.Context())
				go r.probeLoop(ctx)
				<-over
				if r.Up() == c.down {
					t.Errorf("up: %t; want %t", r.Up(), !c.down)
				}
				stop()
				p.Close()
			})
		})
	}
}

// A draining agent reports it although its engine is healthy.
func TestReplicaProbeReturnsErrDrainingForDrainingAgent(t *testing.T) {
	r, b, _ := newReportingReplica(1)
	b.setReport(Report{Limit: 1, Instance: "i", Seq: 1, Draining: true})
	if err := r.probeOnce(t.Context()); err != ErrDraining {
		t.Errorf("probeOnce = %v", err)
	}
}

// A refusal because of draining marks the replica down and is no failure.
func TestReplicaIsDownAfterDrainingRefusal(t *testing.T) {
	withProbedReplica(t, lateProbe, func(r *Replica, fake *fakeBackend, changes *atomic.Int32) {
		sendRequest(t, r, fake, ErrDraining)
		if r.Up() || changes.Load() != 1 || r.DownReason() != ErrDraining.Error() || r.outcomes.failures() != 0 {
			t.Errorf("up: %t, %d changes, reason %q, %d failures", r.Up(), changes.Load(), r.DownReason(), r.outcomes.failures())
		}
	})
}

func TestReplicaStartsSlowlyAfterRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newTestReplica(1)
		defer mustReserve(t, r).Release()
		r.setHealth(errors.New("down"))
		var weighted float64
		r.OnChange(func() { weighted = r.WeightedLoad() })
		r.setHealth(nil)
		if weighted != 10 {
			t.Errorf("the weighted load is %v when the observer is notified", weighted)
		}
	})
}

// The path has a query or not, and is below the base path of the URL. A changed path applies to the
// next probe.
func TestHTTPProbeRequestsTheProbePath(t *testing.T) {
	eachTransport(t, func(t *testing.T, dial func(Endpoint) *HTTP) {
		var requested string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requested = r.RequestURI
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
		defer server.Close()
		e := Endpoint{URL: server.URL + "/base", ConnectTimeout: time.Second}
		h := dial(e)
		for path, want := range map[string]string{
			"":                         "/base/health",
			"/ping":                    "/base/ping",
			"/health/liveliness?a=%20": "/base/health/liveliness?a=%20",
		} {
			e.ProbePath = path
			h.Describe(e)
			_, err := h.Probe(t.Context())
			if requested != want {
				t.Errorf("the probe of %q requested %q, want %q", path, requested, want)
			}
			// Clients may read the error, and a query may have a secret.
			if err == nil || err.Error() != "health check returned Service Unavailable" {
				t.Errorf("Probe = %v", err)
			}
		}
	})
}
