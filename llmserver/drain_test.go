package llmserver

import (
	"errors"
	"slices"
	"testing"
)

// drained returns the endpoint, described as draining.
func drained(e Endpoint) Endpoint {
	e.Draining = true
	return e
}

func TestPoolDrainAdmitsNothingAndFinishesWhatIsOngoing(t *testing.T) {
	p, _ := newTestPool()
	defer p.Close()
	e := endpoint("a")
	e.Limit = 4
	a := mustSet(t, p, e)[0]
	notified := 0
	a.OnChange(func() { notified++ })
	reserved, running, handed := mustReserve(t, a), mustStart(t, a), mustStart(t, a)
	for range 2 { // the second description says nothing new
		if got := mustSet(t, p, drained(e))[0]; got != a {
			t.Fatal("a drain makes another replica")
		}
	}
	if notified != 1 || a.Available() || a.HasRoom() || a.State() != "draining" || a.DownReason() != ErrDraining.Error() {
		t.Errorf("draining: %d notifications, available %t, room %t, state %s, reason %q; want 1 and none",
			notified, a.Available(), a.HasRoom(), a.State(), a.DownReason())
	}
	if _, err := a.TryReserve("late", 0); !errors.Is(err, ErrDraining) {
		t.Errorf("TryReserve while draining = %v", err)
	}
	if _, err := a.ForceReserve("late"); !errors.Is(err, ErrDraining) {
		t.Errorf("ForceReserve while draining = %v", err)
	}
	if handed.HandOver("late") != nil {
		t.Error("a slot of a draining replica was handed over")
	}
	if err := reserved.Start(); err != nil {
		t.Errorf("what was reserved before the drain is refused: %v", err)
	}
	wantUsage(t, a, 0, 2)
	mustSet(t, p, e)
	if notified != 2 || !a.Available() || !a.HasRoom() || a.State() != "serving" || a.Load() != 2 {
		t.Errorf("undrained: %d notifications, available %t, room %t, state %s, load %d",
			notified, a.Available(), a.HasRoom(), a.State(), a.Load())
	}
	mustReserve(t, a).Release()
	reserved.Release()
	running.Release()
	wantUsage(t, a, 0, 0)
}

// A replica that left serves nothing, whatever the last description, until it is back in the set.
func TestPoolDrainOfAReplicaThatLeavesAndComesBack(t *testing.T) {
	for name, c := range map[string]struct{ before, after bool }{
		"drained before, not after": {before: true},
		"drained after, not before": {after: true},
		"drained before and after":  {before: true, after: true},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := newTestPool()
			defer p.Close()
			e := endpoint("a")
			a := mustSet(t, p, e)[0]
			s := mustStart(t, a)
			before, after := e, e
			before.Draining, after.Draining = c.before, c.after
			mustSet(t, p, before)
			mustSet(t, p)
			if a.describe(after); a.DownReason() != ErrGone.Error() {
				t.Errorf("described while retired: %q; want %q", a.DownReason(), ErrGone)
			}
			if a.Drain(); a.DownReason() != ErrGone.Error() {
				t.Errorf("drained while retired: %q; want %q", a.DownReason(), ErrGone)
			}
			if got := mustSet(t, p, after); !slices.Equal(got, []*Replica{a}) || a.Available() == c.after {
				t.Errorf("it came back as %p, available %t", got[0], a.Available())
			}
			mustSet(t, p, e)
			if !a.Available() {
				t.Errorf("undrained: %s", a.DownReason())
			}
			s.Release()
		})
	}
}

// A new replica may be described as draining from the start.
func TestPoolDrainOfANewReplica(t *testing.T) {
	p, _ := newTestPool()
	defer p.Close()
	a := mustSet(t, p, drained(endpoint("a")))[0]
	if _, err := a.TryReserve("early", 0); !errors.Is(err, ErrDraining) {
		t.Errorf("TryReserve = %v", err)
	}
	mustSet(t, p, endpoint("a"))
	mustReserve(t, a).Release()
}

// The drain of an endpoint and the one that the agent reports both have to end.
func TestPoolDrainOfAReplicaWithADrainingAgent(t *testing.T) {
	p, _ := newTestPool()
	defer p.Close()
	a := mustSet(t, p, drained(endpoint("a")))[0]
	a.setHealth(ErrDraining)
	mustSet(t, p, endpoint("a"))
	if a.Available() {
		t.Error("available although the agent drains")
	}
	mustSet(t, p, drained(endpoint("a")))
	a.setHealth(nil)
	if a.Available() {
		t.Error("available although the endpoint drains")
	}
	mustSet(t, p, endpoint("a"))
	if !a.Available() {
		t.Error("not available although both have ended")
	}
}
