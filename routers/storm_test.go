package routers

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth/llmserver"
)

// After any weather every slot is back, the line is empty, each told
// beginning had its end, and no replica saw a request without a slot.
func TestRouterStormReturnsEverySlot(t *testing.T) {
	onEachPolicyClass(t, func(t *testing.T, build Builder) {
		f := newProbedFleet(t, time.Millisecond, 1, 2, 3, 1)
		for _, fake := range f.fakes {
			fake.faults = stormFaults
		}
		var routed, completed atomic.Int64
		hooks := Hooks{Routed: func(*Payload, string) func(Outcome) {
			routed.Add(1)
			return func(Outcome) { completed.Add(1) }
		}}
		r := New(f.replicas, build, Limits{MaxQueued: 20, QueueTimeout: 5 * time.Millisecond}, hooks)
		for _, m := range f.replicas {
			m.OnChange(r.Refresh)
		}
		clear := stormChanges(t, f, r, build)
		var clients sync.WaitGroup
		for range 32 {
			clients.Go(func() {
				for range 150 {
					stormRequest(t, r)
				}
			})
		}
		clients.Wait()
		clear()
		f.wantIdle(t)
		if r.QueueLength() != 0 || r.queue.head != nil || r.QueueLength() != 0 {
			t.Errorf("%d wait, %d are in line", r.QueueLength(), r.QueueLength())
		}
		if routed.Load() == 0 || routed.Load() != completed.Load() {
			t.Errorf("%d routed, %d completed", routed.Load(), completed.Load())
		}
		for i, fake := range f.fakes {
			if fake.bypasses != 0 {
				t.Errorf("replica %d saw %d requests without a slot of their own", i, fake.bypasses)
			}
		}
	})
}

// onEachClass runs f for each policy of the conformance suite.
func onEachPolicyClass(t *testing.T, f func(t *testing.T, build Builder)) {
	for _, c := range conforming {
		t.Run(c.class, func(t *testing.T) {
			build, err := Lookup(c.class, c.kwargs)
			if err != nil {
				t.Fatal(err)
			}
			f(t, build)
		})
	}
}

// gusts are the faults of a replica's calls.
func stormFaults(op string) error {
	switch n := rand.IntN(30); {
	case n == 0 && op == "reserve":
		return llmserver.ErrFull
	case n < 3 && op == "reserve":
		return errReplyLost
	case n < 3 && op == "do":
		return llmserver.ErrBroken
	case n < 15:
		runtime.Gosched()
	}
	return nil
}

// weather changes limits and membership and takes replicas down until it clears.
func stormChanges(t *testing.T, f *fleet, r *Router, build Builder) (clear func()) {
	limits := r.current.Load().limits
	stop := make(chan struct{})
	var changes sync.WaitGroup
	changes.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Microsecond):
			}
			i := rand.IntN(len(f.fakes))
			switch rand.IntN(4) {
			case 0:
				f.fakes[i].down.Store(!f.fakes[i].down.Load())
			case 1:
				f.setLimit(t, i, 1+rand.IntN(3))
				r.Refresh()
			case 2:
				r.Refresh()
			default:
				r.Update(f.replicas[rand.IntN(2):], build, limits)
			}
		}
	})
	return func() {
		close(stop)
		changes.Wait()
	}
}

// walkThrough is one request, whatever may come.
func stormRequest(t *testing.T, r *Router) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if rand.IntN(3) == 0 {
		timer := time.AfterFunc(time.Duration(rand.IntN(1000))*time.Microsecond, cancel)
		defer timer.Stop()
	}
	sel, err := r.Choose(ctx, &Payload{})
	if err != nil {
		_, unavailable := errors.AsType[*UnavailableError](err)
		if !unavailable && err != ErrQueueFull && err != ErrQueueTimeout && err != context.Canceled {
			t.Errorf("Choose = %v", err)
		}
		return
	}
	defer sel.Release()
	if rand.IntN(8) == 0 {
		return
	}
	if _, err := sel.Dispatch(&http.Request{}); err == ErrDispatched {
		t.Error("it was dispatched before")
	}
	runtime.Gosched()
}

// In fair weather a replica never has to refuse: no more is asked of it than it
// has, and who waits gets a slot.
func TestRouterNeverExceedsTheCapacityOfAReplica(t *testing.T) {
	onEachPolicyClass(t, func(t *testing.T, build Builder) {
		f := newFleet(t, 1, 2, 3)
		r := New(f.replicas, build, roomy, Hooks{})
		var clients sync.WaitGroup
		for range 32 {
			clients.Go(func() {
				for range 100 {
					sel, err := r.Choose(t.Context(), &Payload{})
					if err != nil {
						t.Errorf("Choose: %v", err)
						return
					}
					runtime.Gosched()
					serve(t, sel)
				}
			})
		}
		clients.Wait()
		f.wantIdle(t)
		requests := 0
		for i, fake := range f.fakes {
			requests += fake.requests
			if fake.refusals != 0 || fake.cancels != 0 {
				t.Errorf("replica %d: %d refusals, %d cancels", i, fake.refusals, fake.cancels)
			}
		}
		if requests != 3200 {
			t.Errorf("%d requests arrived; want 3200", requests)
		}
	})
}

// A slot that is free while somebody who could use it waits is a wake-up that
// was lost; the request would be found waiting until its time is up.
func TestRouterQueueForgetsNoRequest(t *testing.T) {
	onEachPolicyClass(t, func(t *testing.T, build Builder) {
		f := newFleet(t, 1, 2)
		for _, fake := range f.fakes {
			fake.capacity = 1 << 20 // a plain engine's, which refuses nothing
		}
		r := New(f.replicas, build, Limits{MaxQueued: -1, QueueTimeout: 20 * time.Second}, Hooks{})
		var clients, changes sync.WaitGroup
		done := make(chan struct{})
		changes.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				f.setLimit(t, i%2, 1+rand.IntN(2))
				r.Refresh()
				runtime.Gosched()
			}
		})
		for range 16 {
			clients.Go(func() {
				for range 200 {
					ctx, cancel := context.WithCancel(t.Context())
					if rand.IntN(2) == 0 {
						clients.Go(cancel)
					}
					sel, err := r.Choose(ctx, &Payload{})
					if err == nil && rand.IntN(2) == 0 {
						serve(t, sel)
					} else if err == nil {
						sel.Release()
					} else if err != context.Canceled {
						t.Errorf("Choose = %v", err)
					}
					cancel()
				}
			})
		}
		clients.Wait()
		close(done)
		changes.Wait()
		f.wantIdle(t)
	})
}
