package llmserver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// newTestPool returns a pool of fake backends, and the fakes by replica ID.
func newTestPool() (*Pool, map[string]*fakeBackend) {
	fakes := make(map[string]*fakeBackend)
	return &Pool{Dial: func(e Endpoint) (Backend, error) {
		if e.URL == "" {
			return nil, errors.New("no URL")
		}
		fakes[e.ID] = newFake(100)
		return fakes[e.ID], nil
	}}, fakes
}

func endpoint(id string) Endpoint {
	return Endpoint{Model: "m", ID: id, URL: "http://" + id, Limit: 2}
}

// mustSet calls Set and its retire function.
func mustSet(t *testing.T, p *Pool, endpoints ...Endpoint) []*Replica {
	t.Helper()
	replicas, retire, err := p.Set(endpoints)
	if err != nil {
		t.Fatal(err)
	}
	retire()
	return replicas
}

func TestPoolKeepsPointerAndSlotsAcrossRenames(t *testing.T) {
	p, fakes := newTestPool()
	defer p.Close()
	a := mustSet(t, p, endpoint("a"), endpoint("b"))[0]
	s := mustReserve(t, a)
	changed := endpoint("a")
	changed.ID, changed.Limit, changed.APIKey = "renamed", 7, "key"
	got := mustSet(t, p, endpoint("b"), changed)
	if got[1] != a || a.ID() != "renamed" || a.Load() != 1 || a.Usage().Limit != 7 {
		t.Errorf("%p %q with load %d and limit %d; want %p renamed, 1, 7", got[1], a.ID(), a.Load(), a.Usage().Limit, a)
	}
	if d := fakes["a"].described; d[len(d)-1] != changed {
		t.Errorf("the backend's last description is %+v", d[len(d)-1])
	}
	s.Release()
}

func TestPoolMakesAnotherReplicaForAnotherInstance(t *testing.T) {
	p, _ := newTestPool()
	defer p.Close()
	first := endpoint("a")
	first.Instance = "one"
	old := mustSet(t, p, first)[0]
	s := mustReserve(t, old)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	second := first
	second.Instance = "two"
	reborn := mustSet(t, p, second)[0]
	if reborn == old || reborn.Load() != 0 {
		t.Fatalf("the new process is %p with load %d; the old one is %p", reborn, reborn.Load(), old)
	}
	other := mustReserve(t, reborn)
	if got := p.Leaving(); !slices.Equal(got, []*Replica{old}) {
		t.Errorf("leaving: %v", got)
	}
	s.Release() // late: it touches nothing of the new one
	wantUsage(t, old, 0, 0)
	wantUsage(t, reborn, 1, 0)
	if _, err := old.TryReserve("late", 0); !errors.Is(err, ErrGone) {
		t.Errorf("TryReserve on the old process = %v", err)
	}
	if got := p.Leaving(); len(got) != 0 {
		t.Errorf("leaving although idle: %v", got)
	}
	other.Release()
}

func TestPoolBadSetChangesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		bad  Endpoint
		want string
	}{
		"two of one identity": {Endpoint{Model: "m", ID: "c", URL: "http://a"}, "http://a"},
		"not to be dialled":   {Endpoint{Model: "m", ID: "c"}, "replica c: no URL"},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := newTestPool()
			defer p.Close()
			before := mustSet(t, p, endpoint("a"), endpoint("b"))
			recapped := endpoint("a")
			recapped.Limit = 9
			_, _, err := p.Set([]Endpoint{recapped, c.bad})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("Set = %v; want an error with %q", err, c.want)
			}
			if before[0].Usage().Limit != 2 || !before[1].Available() {
				t.Error("the bad set had an effect")
			}
			if after := mustSet(t, p, endpoint("a"), endpoint("b")); !slices.Equal(after, before) {
				t.Error("the replicas are not the same")
			}
		})
	}
}

func TestPoolRemovedReplicaServesUntilRetired(t *testing.T) {
	p, fakes := newTestPool()
	a := mustSet(t, p, endpoint("a"))[0]
	_, retire, err := p.Set(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := mustReserve(t, a)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	retire()
	if _, err := a.TryReserve("late", 0); !errors.Is(err, ErrGone) || a.Available() || a.DownReason() != ErrGone.Error() {
		t.Errorf("TryReserve = %v, available %t, reason %q", err, a.Available(), a.DownReason())
	}
	wantUsage(t, a, 0, 1)
	if fakes["a"].closed == 0 {
		t.Error("its idle connections are kept")
	}
	s.Release()
	p.Close()
	retire() // late
}

func TestPoolReusesBusyReplicaThatComesBack(t *testing.T) {
	p, _ := newTestPool()
	defer p.Close()
	a := mustSet(t, p, endpoint("a"))[0]
	s := mustReserve(t, a)
	mustSet(t, p)
	if got := mustSet(t, p, endpoint("a"))[0]; got != a || !got.Available() || got.Load() != 1 {
		t.Fatalf("it came back as %p with load %d; want %p, 1", got, got.Load(), a)
	}
	if got := p.Leaving(); len(got) != 0 {
		t.Errorf("leaving although it is in the set: %v", got)
	}
	if err := s.Start(); err != nil {
		t.Error(err)
	}
	s.Release()
	mustSet(t, p)
	if got := mustSet(t, p, endpoint("a"))[0]; got == a {
		t.Error("an idle replica that had left came back as the same")
	}
}

func TestPoolLateRetireSparesReplicaThatCameBack(t *testing.T) {
	p, _ := newTestPool()
	defer p.Close()
	a := mustSet(t, p, endpoint("a"))[0]
	s := mustReserve(t, a)
	_, early, _ := p.Set(nil)
	mustSet(t, p, endpoint("a"))
	early()
	if !a.Available() {
		t.Error("the replica that came back was retired")
	}
	_, late, _ := p.Set(nil)
	early()
	late()
	if a.Available() {
		t.Error("it was not retired")
	}
	s.Release()
}

func TestPoolCloseWaitsForCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failed []string
		p, fakes := newTestPool()
		p.Events.CancelFailed = func(replica string, err error) { failed = append(failed, replica+": "+err.Error()) }
		a := mustSet(t, p, endpoint("a"))[0]
		fakes["a"].deaf = true
		mustReserve(t, a).Release()
		began := time.Now()
		p.Close()
		if took := time.Since(began); took != cancelTimeout {
			t.Errorf("Close took %v; want %v", took, cancelTimeout)
		}
		if want := []string{"a: " + context.DeadlineExceeded.Error()}; !slices.Equal(failed, want) {
			t.Errorf("failed cancels: %q; want %q", failed, want)
		}
	})
}

// The new process has none of the requests that the replica had when it was removed.
func TestPoolDoesNotReuseReplicaThatRestarted(t *testing.T) {
	p, _ := newTestPool()
	defer p.Close()
	a := mustSet(t, p, endpoint("a"))[0]
	s := mustReserve(t, a)
	a.applyReport(Report{Ongoing: 1, Limit: 2, Instance: "first", Seq: 9})
	mustSet(t, p)
	a.applyReport(Report{Limit: 2, Instance: "second", Seq: 1})
	if got := mustSet(t, p, endpoint("a"))[0]; got == a || got.Load() != 0 || got.Usage().Limit != 2 {
		t.Errorf("it came back as %p with load %d; want another than %p, without load", got, got.Load(), a)
	}
	s.Release()
}

// Until retire is called, requests may still choose a replica that has left the set.
func TestPoolKeepsIdleReplicaUntilRetired(t *testing.T) {
	p, _ := newTestPool()
	defer p.Close()
	a := mustSet(t, p, endpoint("a"))[0]
	_, retire, err := p.Set(nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Leaving() // prunes
	s := mustReserve(t, a)
	retire()
	if got := p.Leaving(); !slices.Equal(got, []*Replica{a}) {
		t.Errorf("leaving: %v; want the replica that has a request", got)
	}
	if got := mustSet(t, p, endpoint("a"))[0]; got != a {
		t.Error("it came back as another replica, with all its slots free")
	}
	s.Release()
}

func TestPoolForgetsIdleReplicasOnSet(t *testing.T) {
	p, _ := newTestPool()
	defer p.Close()
	for n := range 10 {
		mustSet(t, p, endpoint(string(rune('a'+n))))
	}
	if len(p.leaving) > 1 {
		t.Errorf("%d idle replicas of former sets are kept", len(p.leaving))
	}
}

func TestPoolProbesEachReplicaOnceAcrossSets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probes := 0
		fake := newFake(1)
		fake.probe = func(context.Context) error { probes++; return nil }
		p := &Pool{Dial: func(Endpoint) (Backend, error) { return fake, nil }}
		for range 5 {
			mustSet(t, p, probedEndpoint)
		}
		time.Sleep(probedEndpoint.ProbeEvery / 2)
		p.Close()
		if probes != 1 {
			t.Errorf("%d probes in the first half of a period; want 1", probes)
		}
	})
}

// A pause between probes must not hold up the end of the process.
func TestPoolCloseStopsProbingAtOnce(t *testing.T) {
	for name, leave := range map[string]bool{"in the set": false, "left, not yet retired": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &Pool{Dial: func(Endpoint) (Backend, error) { return newFake(1), nil }}
				mustSet(t, p, probedEndpoint)
				if leave {
					p.Set(nil)
				}
				synctest.Wait() // the first probe is over
				began := time.Now()
				p.Close()
				if took := time.Since(began); took != 0 {
					t.Errorf("Close took %v", took)
				}
			})
		})
	}
}

func TestPoolCloseWaitsForTheCurrentProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := false
		fake := newFake(1)
		fake.probe = func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			over = true
			return ctx.Err()
		}
		p := &Pool{Dial: func(Endpoint) (Backend, error) { return fake, nil }}
		mustSet(t, p, probedEndpoint)
		synctest.Wait()
		p.Close()
		if !over {
			t.Error("a probe was still in progress when Close returned")
		}
	})
}
