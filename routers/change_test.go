package routers

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// What becomes free otherwise than by a release serves who waits, at once.
func TestRouterQueueIsServedBySlotsThatAppear(t *testing.T) {
	for name, appear := range map[string]func(t *testing.T, f *fleet, r *Router){
		"the limit is raised": func(t *testing.T, f *fleet, r *Router) {
			f.setLimit(t, 0, 2)
			r.Refresh()
		},
		"a replica is added": func(t *testing.T, f *fleet, r *Router) {
			more := f.endpoints[0]
			more.ID, more.URL = "c", "http://c"
			f.set(t, append(f.endpoints, more)...)
			r.Update(f.replicas, newByText, roomy)
		},
		"a replica recovers": func(_ *testing.T, f *fleet, r *Router) {
			f.replicas[1].OnChange(r.Refresh)
			f.fakes[1].down.Store(false)
			time.Sleep(10 * time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newProbedFleet(t, time.Second, 1, 1)
				r := New(f.replicas, newByText, roomy, Hooks{})
				f.fakes[1].down.Store(true)
				time.Sleep(10 * time.Second)
				r.Refresh()
				holder := mustChoose(t, r, "")
				all := queueUp(t, r, "", "")
				appear(t, f, r)
				if got := served(all); !slices.Equal(got, []int{0}) {
					t.Errorf("%v were served; want the first", got)
				}
				serve(t, holder)
				releaseAll(t, all)
				f.wantIdle(t)
			})
		})
	}
}

func TestRouterQueueGetsNoSlotOfALeavingReplica(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, f *fleet, r *Router){
		"draining, told": func(_ *testing.T, f *fleet, r *Router) {
			f.replicas[0].Drain()
			r.Refresh()
		},
		"draining, not told": func(_ *testing.T, f *fleet, _ *Router) { f.replicas[0].Drain() },
		"retired": func(t *testing.T, f *fleet, r *Router) {
			replicas, retire, err := f.pool.Set(f.endpoints[1:])
			if err != nil {
				t.Fatal(err)
			}
			r.Update(replicas, newByText, roomy)
			retire()
		},
		"retired, not told": func(t *testing.T, f *fleet, _ *Router) {
			_, retire, err := f.pool.Set(f.endpoints[1:])
			if err != nil {
				t.Fatal(err)
			}
			retire()
		},
		"lowered below what is ongoing": func(t *testing.T, f *fleet, _ *Router) { f.setLimit(t, 0, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 2, 1)
				r := New(f.replicas, newByText, roomy, Hooks{})
				leaving, stays, other := mustChoose(t, r, "a"), mustChoose(t, r, "a"), mustChoose(t, r, "b")
				all := queueUp(t, r, "ab")
				leave(t, f, r)
				leaving.Release()
				if got := served(all); got != nil {
					t.Error("its slot was handed over")
				}
				serve(t, other)
				if got := served(all); got == nil {
					t.Error("the slot of the other was not handed over")
				}
				stays.Release()
				releaseAll(t, all)
				f.wantIdle(t)
			})
		})
	}
}

func TestRouterQueueIsRankedAgainAfterAChangeInOrderOfArrival(t *testing.T) {
	for name, change := range map[string]func(f *fleet, r *Router){
		"update":  func(f *fleet, r *Router) { r.Update(f.replicas, newByText, roomy) },
		"refresh": func(_ *fleet, r *Router) { r.Refresh() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 1, 1, 1)
				r := New(f.replicas[:2], newByText, roomy, Hooks{})
				a, b := mustChoose(t, r, "a"), mustChoose(t, r, "b")
				all := queueUp(t, r, "ab", "ab", "ab")
				time.Sleep(5 * time.Second)
				f.replicas[0].Drain() // so that all of them rank b best
				change(f, r)
				all = append(all, queueUp(t, r, "b")...)
				holder := b
				for i, q := range all {
					time.Sleep(time.Second)
					serve(t, holder)
					if got := served(all); len(got) != i+1 || !q.returned() {
						t.Fatalf("%v were served by %d slots", got, i+1)
					}
					holder = q.sel
				}
				if all[0].took != 6*time.Second {
					t.Errorf("the first waited %v; want 6s", all[0].took)
				}
				serve(t, holder)
				serve(t, a)
				f.wantIdle(t)
			})
		})
	}
}

func TestRouterQueueFailsUnservableRequestsAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(f *fleet, r *Router)
		want string
	}{
		"closed":          {func(_ *fleet, r *Router) { r.Close() }, ErrClosed.Error()},
		"no replica left": {func(_ *fleet, r *Router) { r.Update(nil, newByText, roomy) }, (&UnavailableError{}).Error()},
		"all draining": {func(f *fleet, r *Router) {
			f.replicas[0].Drain()
			r.Refresh()
		}, (&UnavailableError{Replicas: 1, Reasons: []string{"replica a: draining"}}).Error()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 1)
				r := New(f.replicas, newByText, roomy, Hooks{})
				holder := mustChoose(t, r, "")
				all := queueUp(t, r, "", "")
				time.Sleep(time.Second)
				c.end(f, r)
				synctest.Wait()
				for _, q := range append(all, startChoose(t, r, "")) {
					<-q.done
					if q.err == nil || q.err.Error() != c.want || q.took > time.Second {
						t.Errorf("it ended with %v after %v; want %s", q.err, q.took, c.want)
					}
				}
				if r.QueueLength() != 0 {
					t.Errorf("%d wait", r.QueueLength())
				}
				serve(t, holder) // what is under way is not touched
				f.wantIdle(t)
			})
		})
	}
}
