package routers

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A burst is no overload: three times the slots at once, and twice the capacity for 10 s, even if
// some clients leave.
func TestRouterOverloadAbsorbsBursts(t *testing.T) {
	for authority, newRouter := range overloadFleets {
		t.Run(authority, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, idle := newRouter(t, 4, 8)
				l := &openLoop{router: r, service: time.Second, capacity: 32, patience: time.Minute}
				for range 3 * 32 {
					l.running.Go(l.request)
				}
				l.running.Wait()
				l.run(0.5, 30*time.Second)
				l.run(2, 10*time.Second)
				l.run(0.5, 30*time.Second)
				l.running.Wait()
				if l.refused+l.left > 0 || l.other != nil || r.Overloaded() {
					t.Errorf("%d refused, %d left, another error: %v", l.refused, l.left, l.other)
				}
				impatient := &openLoop{router: r, service: l.service, capacity: l.capacity, patience: l.patience, hasty: true}
				impatient.run(2, 10*time.Second)
				if impatient.refused > 0 {
					t.Errorf("%d were refused because some clients left", impatient.refused)
				}
				impatient.running.Wait()
				idle()
			})
		})
	}
}

// A queue is not too long while its clients wait for it: a batch on a few slots.
func TestRouterOverloadIsNoneWhileClientsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, idle := overloadFleets["ingress"](t, 4, 8)
		l := &openLoop{router: r, service: time.Second, capacity: 32}
		for range 1000 {
			l.running.Go(func() {
				for range 5 {
					l.request()
				}
			})
		}
		l.running.Wait()
		if l.complete != 5000 {
			t.Errorf("%d of 5000 complete, %d refused, others: %v", l.complete, l.refused, l.other)
		}
		idle()
	})
}

func TestRouterOverloadEndsWithTheLoad(t *testing.T) {
	for authority, newRouter := range overloadFleets {
		t.Run(authority, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, idle := newRouter(t, 4, 8)
				var reports []bool
				r.hooks.Overload = func(on bool) { reports = append(reports, on) }
				l := &openLoop{router: r, service: time.Second, capacity: 32, patience: 5 * time.Second}
				l.run(3, time.Minute)
				if !r.Overloaded() {
					t.Error("healthy at three times the capacity")
				}
				l.run(0.7, 30*time.Second)
				if r.Overloaded() {
					t.Error("still overloaded at 0.7 of the capacity")
				}
				refused := l.refused
				goodput := l.run(0.7, time.Minute)
				if l.refused != refused || goodput < 0.6 {
					t.Errorf("%d refused, goodput %.2f", l.refused-refused, goodput)
				}
				l.running.Wait()
				for range 3 * 32 { // so that a request queues, which reports the end
					l.running.Go(l.request)
				}
				l.running.Wait()
				if !slices.Equal(reports, []bool{true, false}) {
					t.Errorf("the hook reported %v", reports)
				}
				idle()
			})
		})
	}
}

// A queue full of late requests refuses no newcomer, which is served first; then comes the newest
// late one.
func TestRouterOverloadPutsLateRequestsLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		r := New(f.replicas, newByText, Limits{MaxQueued: 3, QueueTimeout: time.Minute}, Hooks{})
		holder := mustChoose(t, r, "")
		late := queueUp(t, r, "", "", "")
		r.mu.Lock()
		r.overload = overload{refused: time.Now(), interval: time.Minute, places: 10, maxAge: 100 * time.Millisecond}
		r.queue.orderByAge(true)
		r.mu.Unlock()
		time.Sleep(time.Second / 2)
		newcomer := startChoose(t, r, "")
		if got := served(late); got != nil || !late[0].returned() || late[0].err != ErrOverloaded || newcomer.returned() {
			t.Fatalf("the oldest got %v, the newcomer %v", late[0].err, newcomer.err)
		}
		serve(t, holder)
		if got := served(append(late, newcomer)); !slices.Equal(got, []int{3}) {
			t.Errorf("%v were served first; want the newcomer", got)
		}
		serve(t, newcomer.sel)
		if got := served(late); !slices.Equal(got, []int{2}) {
			t.Errorf("%v were served next; want the newest late one", got)
		}
		releaseAll(t, late)
		f.wantIdle(t)
	})
}

func TestRouterOverloadIsOffWithoutABoundOfTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 8)
		r := New(f.replicas, newByText, roomy, Hooks{})
		l := &openLoop{router: r, service: time.Second, capacity: 8, patience: 5 * time.Second}
		l.run(2, time.Minute)
		if l.refused > 0 || r.Overloaded() {
			t.Errorf("%d refused", l.refused)
		}
		l.running.Wait()
		f.wantIdle(t)
	})
}

// A request that cannot get a slot before its deadline, at the measured rate, is refused at once.
func TestRouterOverloadRefusesRequestsThatMissTheirDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		r := New(f.replicas, newByText, roomy, Hooks{})
		l := &openLoop{router: r, service: time.Second, capacity: 4}
		for range 64 {
			l.running.Go(l.request)
		}
		time.Sleep(5 * time.Second)
		waiting := float64(r.QueueLength())
		for _, test := range []struct {
			deadline time.Duration
			refused  bool
		}{
			{time.Duration(0.7 * waiting / 4 * float64(time.Second)), true},
			{time.Duration(1.5 * waiting / 4 * float64(time.Second)), false},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), test.deadline)
			began := time.Now()
			sel, err := r.Choose(ctx, &Payload{})
			if refused := err == ErrDeadline && time.Since(began) == 0; refused != test.refused {
				t.Errorf("with %v: %v after %v", test.deadline, err, time.Since(began))
			}
			if sel != nil {
				sel.Release()
			}
			cancel()
		}
		l.running.Wait()
		f.wantIdle(t)
	})
}

// A client that leaves sooner than the target is not impatient with the queue.
func TestRouterOverloadCountsOnlyRequestsThatWaited(t *testing.T) {
	for _, test := range []struct {
		waited time.Duration
		begins bool
	}{{time.Second, false}, {1100 * time.Millisecond, true}} {
		now := time.Unix(1000, 0)
		o := overload{target: time.Second, interval: 10 * time.Second}
		o.observe(now, 2*time.Second)
		now = now.Add(20 * time.Second)
		begins := false
		for range minLeft {
			begins = o.onLeft(now, test.waited)
		}
		if begins != test.begins || o.active() != begins {
			t.Errorf("after waits of %v: begins %t, overloaded: %t", test.waited, begins, o.active())
		}
	}
}
