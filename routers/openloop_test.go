package routers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver/agent"
)

// defaults are the limits of a configuration that names none.
var defaults = Limits{MaxQueued: 1024, QueueTimeout: time.Minute}

// openLoop sends requests at a rate, whatever became of earlier ones. Clients leave after their
// patience, waiting or not.
type openLoop struct {
	router   *Router
	capacity float64       // requests per second
	service  time.Duration // mean; a request takes from half of it to half more
	patience time.Duration
	hasty    bool // one client in twenty leaves after one and a half times the service time

	mu       sync.Mutex
	complete int
	left     int           // clients that left, and queue timeouts
	refused  int           // with ErrOverloaded or ErrQueueFull
	slowest  time.Duration // refusal
	other    error
	running  sync.WaitGroup
}

// run sends requests at a multiple of the capacity and returns the part of the capacity that
// completed in the given time. Requests may still be running.
func (l *openLoop) run(multiple float64, lasts time.Duration) (goodput float64) {
	l.mu.Lock()
	before := l.complete
	l.mu.Unlock()
	for until := time.Now().Add(lasts); time.Now().Before(until); {
		l.running.Go(l.request)
		time.Sleep(time.Duration(rand.ExpFloat64() / (multiple * l.capacity) * float64(time.Second)))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return float64(l.complete-before) / (l.capacity * lasts.Seconds())
}

func (l *openLoop) request() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	switch {
	case l.hasty && rand.IntN(20) == 0:
		defer time.AfterFunc(l.service*3/2, cancel).Stop()
	case l.patience > 0:
		defer time.AfterFunc(l.patience, cancel).Stop()
	}
	began := time.Now()
	p := &Payload{Blocks: long(rand.IntN(16), 8), SessionID: fmt.Sprint(rand.IntN(64))}
	sel, err := l.router.Choose(ctx, p)
	if err == nil {
		defer sel.Release()
		_, err = sel.Dispatch((&http.Request{}).WithContext(ctx))
	}
	if err == nil {
		select {
		case <-time.After(l.service/2 + rand.N(l.service)):
		case <-ctx.Done():
			err = ctx.Err()
			sel.Fail(err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.complete++
	case errors.Is(err, context.Canceled), err == ErrQueueTimeout:
		l.left++
	case errors.Is(err, ErrOverloaded), errors.Is(err, ErrQueueFull):
		l.refused++
		l.slowest = max(l.slowest, time.Since(began))
	default:
		l.other = err
	}
}

// overloadFleets are fleets with a slot authority each.
var overloadFleets = map[string]func(t *testing.T, replicas, slots int) (r *Router, idle func()){
	"ingress": func(t *testing.T, replicas, slots int) (*Router, func()) {
		f := newFleet(t, slices.Repeat([]int{slots}, replicas)...)
		build, err := Lookup("PrefixCacheAffinityRouter", nil)
		if err != nil {
			t.Fatal(err)
		}
		r := New(f.replicas, build, defaults, Hooks{})
		return r, func() { f.wantIdle(t); r.Close() }
	},
	"replica": func(t *testing.T, replicas, slots int) (*Router, func()) {
		var tables []*agent.Table
		for range replicas {
			tables = append(tables, agent.NewTable(slots))
		}
		in := newIngress(t, defaults, tables...)
		return in.Router, func() { in.close(t) }
	},
}

// With the default limits, for service times from a fraction of a second to half a minute, and
// clients that leave after five of them.
func TestRouterOverloadKeepsGoodput(t *testing.T) {
	for authority, newRouter := range overloadFleets {
		for _, service := range []time.Duration{250 * time.Millisecond, 2 * time.Second, 20 * time.Second} {
			for _, multiple := range []float64{0.5, 1, 1.2, 2, 4} {
				t.Run(fmt.Sprint(authority, " ", service, " ", multiple), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						r, idle := newRouter(t, 4, 8)
						l := &openLoop{router: r, service: service, capacity: 32 / service.Seconds(), patience: 5 * service}
						first := l.run(multiple, 40*time.Second+10*service)
						goodput := l.run(multiple, 20*time.Second+40*service)
						overloaded := r.Overloaded()
						l.running.Wait()
						t.Logf("goodput %.3f at first, then %.3f of the capacity; %d complete, %d left, %d refused",
							first, goodput, l.complete, l.left, l.refused)
						if want := min(multiple, 1) * 0.9; goodput < want {
							t.Errorf("%.3f of the capacity completed; want %.3f at least", goodput, want)
						}
						if l.slowest > 50*time.Millisecond || l.other != nil {
							t.Errorf("a refusal took %v; another error: %v", l.slowest, l.other)
						}
						if multiple < 1 && (overloaded || l.refused > 0) || multiple >= 2 && !overloaded {
							t.Errorf("overloaded: %t, with %d requests refused", overloaded, l.refused)
						}
						idle()
					})
				})
			}
		}
	}
}

// Goodput follows the capacity when that changes amid an overload: replicas join, leave, get other
// limits, or are ejected.
func TestRouterOverloadFollowsTheCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 8, 8, 8, 8)
		r := New(f.replicas, newByText, defaults, Hooks{})
		defer r.Close()
		for _, m := range f.replicas {
			m.OnChange(r.Refresh)
		}
		l := &openLoop{router: r, service: time.Second, capacity: 32, patience: 5 * time.Second}
		expect := func(change string, slots float64) {
			t.Helper()
			l.run(2, 20*time.Second) // at the load of before
			l.capacity = slots
			if goodput := l.run(64/slots, 30*time.Second); goodput < 0.9 {
				t.Errorf("%s: %.3f of the capacity completed", change, goodput)
			}
			if !r.Overloaded() {
				t.Errorf("%s: no overload at twice the capacity", change)
			}
			l.capacity = 32
		}
		expect("at first", 32)
		r.Update(f.replicas[:2], newByText, defaults)
		expect("half of the replicas", 16)
		r.Update(f.replicas, newByText, defaults)
		expect("all again", 32)
		f.setLimit(t, 0, 2)
		r.Refresh()
		expect("a limit lowered", 26)
		f.setLimit(t, 0, 8)
		r.Refresh()
		f.fakes[0].down.Store(true)
		expect("a replica that refuses connections", 24)
		if l.slowest > 50*time.Millisecond {
			t.Errorf("a refusal took %v", l.slowest)
		}
		l.running.Wait()
		f.fakes[0].down.Store(false)
	})
}
