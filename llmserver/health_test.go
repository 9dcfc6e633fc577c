package llmserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// probedEndpoint is probed every ten seconds.
var probedEndpoint = Endpoint{Model: "m", ID: "a", URL: "http://a", Limit: 100, ProbeEvery: 10 * time.Second, ProbeTimeout: 2 * time.Second}

// lateProbe is a probe that times out.
func lateProbe(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// withProbedReplica runs f in a synctest bubble on a replica that is probed by probe. changes
// counts the calls of its observer.
func withProbedReplica(t *testing.T, probe func(ctx context.Context) error, f func(r *Replica, fake *fakeBackend, changes *atomic.Int32)) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFake(100)
		fake.probe = probe
		p := &Pool{Dial: func(Endpoint) (Backend, error) { return fake, nil }}
		r := mustSet(t, p, probedEndpoint)[0]
		addSibling(r)
		changes := new(atomic.Int32)
		r.OnChange(func() { changes.Add(1) })
		f(r, fake, changes)
		p.Close() // the bubble fails if the probing does not end with it
	})
}

// sendRequest sends one request, which ends with err.
func sendRequest(t *testing.T, r *Replica, fake *fakeBackend, err error) {
	t.Helper()
	sendInSlot(t, mustReserve(t, r), fake, err)
}

// sendInSlot sends one request into s, which ends with err.
func sendInSlot(t *testing.T, s *Slot, fake *fakeBackend, err error) {
	t.Helper()
	r := s.Replica()
	defer s.Release()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	fake.faults = func(string) error { return err }
	defer func() { fake.faults = nil }()
	resp, got := r.Do(&http.Request{}, s)
	if !errors.Is(got, err) || err != nil && !strings.HasPrefix(got.Error(), "replica "+r.ID()+": ") {
		t.Fatalf("Do = %v; want %v with the replica's name", got, err)
	}
	if err == nil {
		resp.Body.Close()
	}
}

func TestReplicaIsDownAfterRefusedConnectUntilAProbeSucceeds(t *testing.T) {
	var down atomic.Bool
	probe := func(context.Context) error {
		if down.Load() {
			return errors.New("not yet")
		}
		return nil
	}
	withProbedReplica(t, probe, func(r *Replica, fake *fakeBackend, changes *atomic.Int32) {
		synctest.Wait()
		down.Store(true)
		sendRequest(t, r, fake, ErrNoConnection)
		sendRequest(t, r, fake, ErrNoConnection)
		if r.Available() || changes.Load() != 1 || r.DownReason() == "" {
			t.Fatalf("available %t, %d changes, reason %q", r.Available(), changes.Load(), r.DownReason())
		}
		synctest.Wait()
		if r.DownReason() != "not yet" {
			t.Errorf("it was not probed at once; reason %q", r.DownReason())
		}
		down.Store(false)
		time.Sleep(maxProbeRetry)
		synctest.Wait()
		if !r.Available() || changes.Load() != 2 || r.DownReason() != "" {
			t.Errorf("after a good probe: available %t, %d changes, reason %q", r.Available(), changes.Load(), r.DownReason())
		}
	})
}

func TestReplicaIsDownOnlyAfterFailedConnects(t *testing.T) {
	withProbedReplica(t, nil, func(r *Replica, fake *fakeBackend, changes *atomic.Int32) {
		for _, err := range []error{ErrBroken, ErrStale, ErrNotHTTP, context.Canceled, context.DeadlineExceeded} {
			sendRequest(t, r, fake, err)
		}
		if !r.Available() || changes.Load() != 0 {
			t.Errorf("available %t after %d changes", r.Available(), changes.Load())
		}
	})
}

// The delay does not grow with the length of the outage. The configured period applies again
// afterwards.
func TestReplicaIsUsedAgainWithinASecondOfItsReturn(t *testing.T) {
	const outage = 1000 * time.Second
	var at []time.Time
	var back atomic.Bool
	probe := func(context.Context) error {
		if back.Load() {
			return nil
		}
		at = append(at, time.Now())
		return ErrNoConnection
	}
	withProbedReplica(t, probe, func(r *Replica, _ *fakeBackend, changes *atomic.Int32) {
		time.Sleep(outage)
		synctest.Wait()
		if r.Available() {
			t.Fatal("it is available")
		}
		spread := map[time.Duration]bool{}
		for i := range len(at) - 1 {
			gap := at[i+1].Sub(at[i])
			spread[gap] = true
			if gap < minProbeRetry || gap > maxProbeRetry {
				t.Errorf("gap %d is %v", i, gap)
			}
		}
		if least := int(outage / maxProbeRetry); len(at) < least || len(spread) < least/2 {
			t.Errorf("%d probes with %d different gaps", len(at), len(spread))
		}
		back.Store(true)
		time.Sleep(time.Second)
		synctest.Wait()
		if !r.Available() || changes.Load() != 2 {
			t.Errorf("a second after its return: available %t, %d changes", r.Available(), changes.Load())
		}
	})
}

func TestReplicaUpIsProbedOncePerPeriod(t *testing.T) {
	var at []time.Time
	probe := func(context.Context) error {
		if at = append(at, time.Now()); len(at) == 2 {
			return errors.New("once")
		}
		return nil
	}
	withProbedReplica(t, probe, func(*Replica, *fakeBackend, *atomic.Int32) {
		time.Sleep(time.Hour)
		synctest.Wait()
		for i := range len(at) - 1 {
			least, most := probedEndpoint.ProbeEvery*4/5, probedEndpoint.ProbeEvery
			if i == 1 {
				least, most = minProbeRetry, maxProbeRetry
			}
			if gap := at[i+1].Sub(at[i]); gap < least || gap > most {
				t.Errorf("gap %d is %v, want %v to %v", i, gap, least, most)
			}
		}
	})
}

// A short period is not exceeded while the replica is down.
func TestReplicaDownIsProbedAtLeastOncePerPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, e, probes := newFake(1), probedEndpoint, new(atomic.Int32)
		fake.probe = func(context.Context) error { probes.Add(1); return ErrNoConnection }
		e.ProbeEvery = 20 * time.Millisecond
		p := &Pool{Dial: func(Endpoint) (Backend, error) { return fake, nil }}
		mustSet(t, p, e)
		time.Sleep(time.Second)
		if n := probes.Load(); n < 50 {
			t.Errorf("%d probes in a second", n)
		}
		p.Close()
	})
}

func TestReplicaIsDownAfterThreeConsecutiveProbeFailures(t *testing.T) {
	for name, failure := range map[string]error{"a 5xx": errors.New("/health returned 500"), "refused": ErrNoConnection} {
		t.Run(name, func(t *testing.T) {
			results := []error{failure, failure, nil, failure, failure, nil, failure, failure, failure}
			probes := 0
			probe := func(context.Context) error {
				probes++
				return results[min(probes, len(results))-1]
			}
			withProbedReplica(t, probe, func(r *Replica, _ *fakeBackend, _ *atomic.Int32) {
				down := make(chan int, 1)
				r.OnChange(func() { down <- probes })
				began := time.Now()
				if n := <-down; n != len(results) || r.Available() {
					t.Errorf("available %t after %d probes; want false, %d", r.Available(), n, len(results))
				}
				if took := time.Since(began); took > 2*probedEndpoint.ProbeEvery+9*time.Second {
					t.Errorf("failures are followed up only after %v", took)
				}
			})
		})
	}
}

func TestReplicaIsDownAfterFirstProbeTimeoutWithoutTraffic(t *testing.T) {
	probes := 0
	probe := func(ctx context.Context) error {
		probes++
		return lateProbe(ctx)
	}
	withProbedReplica(t, probe, func(r *Replica, _ *fakeBackend, _ *atomic.Int32) {
		down := make(chan int, 1)
		r.OnChange(func() { down <- probes })
		if n := <-down; n != 1 || r.Available() {
			t.Errorf("available %t after %d probes; want false, 1", r.Available(), n)
		}
		if r.DownReason() != "health check timed out" {
			t.Errorf("the reason is %q", r.DownReason())
		}
	})
}

func TestReplicaWithTrafficSurvivesProbeTimeouts(t *testing.T) {
	for name, sends := range map[string]func(t *testing.T, r *Replica, fake *fakeBackend) func(){
		"responses": func(t *testing.T, r *Replica, _ *fakeBackend) func() {
			return func() { sendResponse(t, r) }
		},
		"more of a long one": func(t *testing.T, r *Replica, _ *fakeBackend) func() {
			s := mustReserve(t, r)
			resp := &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(strings.Repeat("x", 1000)))}
			r.observeBody(s, resp)
			t.Cleanup(s.Release)
			return func() { resp.Body.Read(make([]byte, 1)) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			withProbedReplica(t, lateProbe, func(r *Replica, fake *fakeBackend, changes *atomic.Int32) {
				send := sends(t, r, fake)
				for range 120 {
					send()
					time.Sleep(probedEndpoint.ProbeTimeout / 2)
				}
				if !r.Available() || changes.Load() != 0 {
					t.Fatalf("available %t after %d changes", r.Available(), changes.Load())
				}
				time.Sleep(2 * (probedEndpoint.ProbeEvery + probedEndpoint.ProbeTimeout)) // without traffic
				synctest.Wait()
				if r.Available() {
					t.Error("it is still available")
				}
			})
		})
	}
}

func TestReplicaDrainNotifiesTheObserver(t *testing.T) {
	withProbedReplica(t, nil, func(r *Replica, _ *fakeBackend, changes *atomic.Int32) {
		r.Drain()
		if r.Available() || changes.Load() != 1 || r.DownReason() != ErrDraining.Error() {
			t.Errorf("available %t, %d changes, reason %q", r.Available(), changes.Load(), r.DownReason())
		}
	})
}

func TestReplicaRetiredIsNotProbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probes := 0
		fake := newFake(1)
		fake.probe = func(ctx context.Context) error {
			if probes++; probes == 5 {
				return lateProbe(ctx) // in progress when the replica is removed
			}
			return nil
		}
		p := &Pool{Dial: func(Endpoint) (Backend, error) { return fake, nil }}
		e := probedEndpoint
		e.ProbeTimeout = time.Hour
		mustSet(t, p, e)[0].OnChange(func() { t.Error("the removal was notified as a change") })
		time.Sleep(time.Minute)
		mustSet(t, p)
		time.Sleep(time.Minute)
		synctest.Wait()
		if probes != 5 {
			t.Errorf("%d probes; want 5", probes)
		}
		p.Close()
	})
}

func TestReplicaIsDownAfterProbeReportsDraining(t *testing.T) {
	probe := func(context.Context) error { return ErrDraining }
	withProbedReplica(t, probe, func(r *Replica, _ *fakeBackend, _ *atomic.Int32) {
		synctest.Wait()
		if r.Available() || r.State() != "down" {
			t.Errorf("it is %s after one probe", r.State())
		}
	})
}
