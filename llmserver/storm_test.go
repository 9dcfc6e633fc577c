package llmserver

import (
	"math/rand/v2"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// After a storm every slot is released, here and at the backend, which never saw a request without
// a slot or two requests in one.
func TestSlotStormLeavesNoSlotBehind(t *testing.T) {
	const capacity = 5
	r, f := newTestReplica(capacity)
	f.faults = func(op string) error {
		switch n := rand.IntN(20); {
		case n == 0 && op == "do":
			return ErrBroken
		case n == 1 && op == "reserve":
			return ErrFull
		case n < 3 && op != "do":
			return errReplyLost
		case n < 12:
			runtime.Gosched()
		}
		return nil
	}
	clear := churnReplica(r, capacity)
	var requests sync.WaitGroup
	for range 32 {
		requests.Go(func() {
			for range 300 {
				if s, err := r.TryReserve("storm", rand.IntN(2*capacity)); err == nil {
					exerciseSlot(t, r, s)
				}
			}
		})
	}
	requests.Wait()
	clear()
	r.Wait()
	wantUsage(t, r, 0, 0)
	if f.holds() != 0 {
		t.Errorf("the replica still holds %d", f.holds())
	}
	if len(f.violations) > 0 {
		t.Errorf("%d violations, such as: %s", len(f.violations), f.violations[0])
	}
}

// churnReplica changes the replica's limit and phase until the returned function is called.
func churnReplica(r *Replica, capacity int) (clear func()) {
	stop := make(chan struct{})
	var changes sync.WaitGroup
	changes.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			e := r.Endpoint()
			e.Limit = 1 + rand.IntN(capacity)
			r.describe(e)
			switch rand.IntN(8) {
			case 0:
				r.Drain()
			case 1:
				r.retire()
			default:
				r.activate()
			}
			runtime.Gosched()
		}
	})
	return func() {
		close(stop)
		changes.Wait()
	}
}

// exerciseSlot leads a slot through one of its possible lives, failures included.
func exerciseSlot(t *testing.T, r *Replica, s *Slot) {
	defer s.Release()
	if s.Confirm(t.Context(), 0) != nil {
		return
	}
	switch rand.IntN(6) {
	case 0: // the client disconnects
		return
	case 1: // the client disconnects while the slot is being started
		race(s.Release, func() {
			if s.Start() == nil {
				sendAndClose(r, s)
			}
		})
		return
	}
	won := make(chan bool, 2)
	start := func() { won <- s.Start() == nil }
	race(start, start)
	if first, second := <-won, <-won; first && second {
		t.Error("a slot was started twice")
	} else if !first && !second {
		return // the replica was retired
	}
	sendAndClose(r, s)
	if rand.IntN(2) == 0 {
		if next := s.HandOver("next"); next != nil {
			exerciseSlot(t, r, next)
		}
	}
	race(s.Release, s.Release)
}

func sendAndClose(r *Replica, s *Slot) {
	if resp, err := r.Do(&http.Request{}, s); err == nil {
		resp.Body.Close()
	}
}

// race runs both functions as simultaneously as possible.
func race(f, g func()) {
	var ready atomic.Int32
	var both sync.WaitGroup
	for _, do := range []func(){f, g} {
		both.Go(func() {
			ready.Add(1)
			for n := 1; ready.Load() < 2; n++ {
				if n%1000 == 0 { // the other one may need this processor
					runtime.Gosched()
				}
			}
			do()
		})
	}
	both.Wait()
}

// Without lost replies and disconnects the backend never refuses: the gate reserves no more than
// there is.
func TestGateNeverExceedsTheBackendsCapacity(t *testing.T) {
	const capacity = 3
	r, f := newTestReplica(capacity)
	f.faults = func(string) error { runtime.Gosched(); return nil }
	var requests sync.WaitGroup
	for range 32 {
		requests.Go(func() {
			for range 300 {
				s, err := r.TryReserve("holder", 0)
				if err != nil {
					runtime.Gosched()
					continue
				}
				if err := s.Confirm(t.Context(), 0); err != nil {
					t.Errorf("Confirm: %v", err)
					return
				}
				s.Start()
				resp, err := r.Do(&http.Request{}, s)
				if err != nil {
					t.Errorf("Do: %v", err)
					return
				}
				resp.Body.Close()
				s.Release()
			}
		})
	}
	requests.Wait()
	r.Wait()
	wantUsage(t, r, 0, 0)
	if f.refusals != 0 || f.cancels != 0 || f.reserves == 0 {
		t.Errorf("%d reserved, %d refusals, %d cancels", f.reserves, f.refusals, f.cancels)
	}
}
