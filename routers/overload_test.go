package routers

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// At twice the capacity, for as long as it lasts: who is let into the line is served within twice the time in which the
// line moves on by its length, whatever it prefers, and no slot is idle meanwhile. To be passed over costs 64 places at
// most, so this is so for lines that may be longer than that.
func TestRouterQueueBoundsTheWaitAtTwiceTheCapacity(t *testing.T) {
	const (
		replicas, each = 4, 4
		slots, queued  = replicas * each, 4 * maxSkips
		bound          = 2 * meanService * queued / slots
		lasts          = 20 * time.Second
	)
	for _, class := range conforming {
		t.Run(fmt.Sprint(class.class, class.kwargs), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				build, err := Lookup(class.class, class.kwargs)
				if err != nil {
					t.Fatal(err)
				}
				f := newFleet(t, slices.Repeat([]int{each}, replicas)...)
				r := New(f.replicas, build, Limits{MaxQueued: queued, QueueTimeout: time.Minute}, Hooks{})
				var mu sync.Mutex
				var longest, busy time.Duration
				served, refused := 0, 0
				var all sync.WaitGroup
				for until := time.Now().Add(lasts); time.Now().Before(until); time.Sleep(meanService / slots / 2) {
					all.Go(func() {
						p := &Payload{Blocks: long(rand.IntN(16), 8)}
						sel, err := r.Choose(context.Background(), p)
						mu.Lock()
						if longest = max(longest, p.Waited); err != nil {
							if refused++; err != ErrQueueFull {
								t.Errorf("Choose: %v", err)
							}
							mu.Unlock()
							return
						}
						d := service()
						served, busy = served+1, busy+d
						mu.Unlock()
						if _, err := sel.Dispatch(&http.Request{}); err != nil {
							t.Errorf("Dispatch: %v", err)
						}
						time.Sleep(d)
						sel.Release()
					})
				}
				all.Wait()
				t.Logf("%d served and %d refused, the longest wait %v", served, refused, longest)
				if longest > bound || longest < bound/8 {
					t.Errorf("the longest wait was %v; want %v at most", longest, bound)
				}
				if busy < lasts*slots*9/10 || refused < served/2 {
					t.Errorf("%d were served, for %v in all, and %d refused", served, busy, refused)
				}
				f.wantIdle(t)
			})
		})
	}
}
