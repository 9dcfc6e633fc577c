package routers

import (
	"regexp"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
)

// A change that is told while Refresh is at work is looked at before Refresh returns.
func TestRouterRefreshRepeatsForAConcurrentChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)
		var before func(string)
		r := New(f.replicas, hooked(&before), roomy, Hooks{})
		held, err := f.replicas[0].TryReserve("a request of another model", 0)
		if err != nil {
			t.Fatal(err)
		}
		queued := queueUp(t, r, "a")
		before = func(string) { // b is offered, and a was found full before
			before = nil
			held.Release()
			r.Refresh()
		}
		r.Refresh()
		if before != nil {
			t.Fatal("nothing came in between")
		}
		if got := served(queued); len(got) != 1 {
			t.Error("the request waits though a slot came free while Refresh was at work")
		}
		releaseAll(t, queued)
		f.wantIdle(t)
	})
}

// waitUntilLocked returns when a goroutine waits for a mutex within the function.
func waitUntilLocked(t *testing.T, function string) {
	t.Helper()
	locked := regexp.MustCompile(`^goroutine \d+ \[sync\.Mutex\.Lock(.|\n)*` + regexp.QuoteMeta(function) + `\(`)
	buf := make([]byte, 1<<20)
	for began := time.Now(); time.Since(began) < time.Minute; runtime.Gosched() {
		stacks := string(buf[:runtime.Stack(buf, true)])
		for _, stack := range regexp.MustCompile(`\n\n`).Split(stacks, -1) {
			if locked.MatchString(stack) {
				return
			}
		}
	}
	t.Fatalf("nobody waits for a mutex in %s", function)
}

// A refresh that waits for a reload goes by what the reload has brought.
func TestRouterRefreshDoesNotUndoAnUpdate(t *testing.T) {
	f := newFleet(t, 1, 1)
	r := New(f.replicas[:1], newByText, roomy, Hooks{})
	var refresh sync.WaitGroup
	r.mu.Lock()
	refresh.Go(r.Refresh)
	waitUntilLocked(t, "(*Router).Refresh")
	next := *r.current.Load()
	next.members = f.replicas
	next.index = map[*llmserver.Replica]int{f.replicas[0]: 0, f.replicas[1]: 1}
	r.publish(&next)
	r.mu.Unlock()
	refresh.Wait()
	if n := len(r.Members()); n != 2 {
		t.Errorf("the router goes by %d replicas after the reload; want 2", n)
	}
}

// The limit of a tier is checked in the same step that takes the slot: of two requests that come at one moment, one gets it.
func TestRouterTierLimitHoldsForConcurrentRequests(t *testing.T) {
	const rounds = 10_000
	f := newFleet(t, 64)
	r := New(f.replicas, bounded(1), roomy, Hooks{})
	var arrived, got atomic.Int32
	meet := func(n int) {
		arrived.Add(1)
		for spins := 1; arrived.Load() < int32(n); spins++ {
			if spins%100 == 0 { // else both go on at different times
				runtime.Gosched()
			}
		}
	}
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			for round := range rounds {
				c := r.newSelector(new(Payload), nil)
				meet(round*4 + 2)
				sel, err := c.selectNow(t.Context())
				if err == nil && got.Add(1) > 1 {
					t.Errorf("round %d: both got a slot in a tier that is limited to 1", round)
				}
				meet(round*4 + 4)
				if err == nil {
					got.Store(0)
					serve(t, sel)
				}
			}
		})
	}
	both.Wait()
	f.wantIdle(t)
}
