package routers

import (
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
)

// inLine has requests line up for the texts, one after the other.
func queueUp(t *testing.T, r *Router, texts ...string) (all []*request) {
	t.Helper()
	for _, text := range texts {
		all = append(all, startChoose(t, r, text))
		synctest.Wait()
	}
	if r.QueueLength() < len(all) {
		t.Fatalf("%d are in line; want %d", r.QueueLength(), len(all))
	}
	return all
}

// served names, by index, the requests that hold a slot.
func served(all []*request) (got []int) {
	synctest.Wait()
	for i, q := range all {
		if q.returned() && q.sel != nil {
			got = append(got, i)
		}
	}
	return got
}

// endAll releases whatever the requests have got, until nobody waits.
func releaseAll(t *testing.T, all []*request) {
	for range all {
		synctest.Wait()
		for _, q := range all {
			if q.returned() && q.sel != nil {
				serve(t, q.sel)
				q.sel = nil
			}
		}
	}
}

func TestRouterQueueServesTheOldestAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		r := New(f.replicas, newByText, roomy, Hooks{})
		holder := mustChoose(t, r, "")
		all := queueUp(t, r, "", "", "")
		for i, q := range all {
			time.Sleep(time.Second)
			serve(t, holder)
			<-q.done
			if want := time.Duration(i+1) * time.Second; q.err != nil || q.took != want || q.payload.Waited != want {
				t.Fatalf("the request at %d in line got %v after %v, of which %v in line; want a slot after %v", i, q.err, q.took, q.payload.Waited, want)
			}
			if got := served(all); len(got) != i+1 {
				t.Fatalf("%v were served by %d slots", got, i+1)
			}
			holder = q.sel
		}
		serve(t, holder)
		f.wantIdle(t)
		if slots, passedOver := r.Handoffs(); slots != 3 || passedOver != 0 {
			t.Errorf("%d slots are counted as handed over, %d times past somebody; want 3, 0", slots, passedOver)
		}
		if n := f.fakes[0].cancels; n != 0 {
			t.Errorf("%d cancels", n)
		}
	})
}

func TestRouterQueueTimeoutEndsAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		r := New(f.replicas, newByText, Limits{MaxQueued: -1, QueueTimeout: 7 * time.Second}, Hooks{})
		holder := mustChoose(t, r, "")
		q := startChoose(t, r, "")
		<-q.done
		if q.err != ErrQueueTimeout || q.took != 7*time.Second || r.QueueLength() != 0 {
			t.Errorf("it ended with %v after %v; %d wait", q.err, q.took, r.QueueLength())
		}
		serve(t, holder)
		f.wantIdle(t)
	})
}

// A slot that comes just as the time is up may be refused by its replica;
// the wait must be over then, too.
func TestRouterQueueTimeoutHoldsAcrossARefusal(t *testing.T) {
	for range 40 { // which of the two comes first is a matter of chance
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 1, 1)
			r := New(f.replicas, newByText, Limits{MaxQueued: -1, QueueTimeout: time.Second}, Hooks{})
			a, b := mustChoose(t, r, "a"), mustChoose(t, r, "b")
			q := startChoose(t, r, "")
			go func() {
				time.Sleep(time.Second)
				f.fakes[0].faults = func(string) error { return llmserver.ErrFull }
				a.Release()
			}()
			time.Sleep(time.Minute)
			synctest.Wait()
			if !q.returned() || q.err != ErrQueueTimeout || q.took != time.Second {
				q.cancel(nil)
				<-q.done
				t.Errorf("it ended with %v after %v; want ErrWaitOver after 1s", q.err, q.took)
			}
			serve(t, b)
			f.wantIdle(t)
		})
	}
}

func TestRouterQueueDisconnectEndsAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		r := New(f.replicas, newByText, roomy, Hooks{})
		holder := mustChoose(t, r, "")
		all := queueUp(t, r, "", "", "")
		why := errors.New("hung up")
		time.Sleep(2 * time.Second)
		all[0].cancel(why)
		<-all[0].done
		if all[0].err != why || all[0].took != 2*time.Second || r.QueueLength() != 2 {
			t.Errorf("it ended with %v after %v; %d wait", all[0].err, all[0].took, r.QueueLength())
		}
		serve(t, holder)
		if got := served(all); !slices.Equal(got, []int{1}) {
			t.Errorf("%v were served", got)
		}
		releaseAll(t, all)
		f.wantIdle(t)
	})
}

func TestRouterQueueDisconnectPassesASlotOn(t *testing.T) {
	f := newFleet(t, 1)
	r := New(f.replicas, newByText, roomy, Hooks{})
	for range 1000 {
		holder := mustChoose(t, r, "")
		hasty, patient := startChoose(t, r, ""), startChoose(t, r, "")
		for r.QueueLength() < 2 {
			runtime.Gosched()
		}
		var race sync.WaitGroup
		race.Go(func() { serve(t, holder) })
		race.Go(func() { hasty.cancel(nil) })
		race.Wait()
		<-hasty.done
		if hasty.sel != nil {
			serve(t, hasty.sel)
		}
		<-patient.done
		if patient.err != nil {
			t.Fatalf("who stayed in line got %v", patient.err)
		}
		serve(t, patient.sel)
	}
	f.wantIdle(t)
}

func TestRouterQueueBoundIsOneStep(t *testing.T) {
	for _, bound := range []int{0, 3, -1} {
		t.Run(fmt.Sprint(bound), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 1)
				r := New(f.replicas, newByText, Limits{MaxQueued: bound, QueueTimeout: time.Minute}, Hooks{})
				holder := mustChoose(t, r, "")
				var all []*request
				for range 32 {
					all = append(all, startChoose(t, r, ""))
				}
				synctest.Wait()
				want := bound
				if bound < 0 {
					want = len(all)
				}
				refused := 0
				for _, q := range all {
					if q.returned() && q.err == ErrQueueFull && q.took == 0 {
						refused++
					}
				}
				if r.QueueLength() != want || refused != len(all)-want {
					t.Errorf("%d wait and %d were refused; want %d, %d", r.QueueLength(), refused, want, len(all)-want)
				}
				serve(t, holder)
				releaseAll(t, all)
				f.wantIdle(t)
			})
		})
	}
}

func TestRouterQueueRefusedRequestHasNoArrivalNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		r := New(f.replicas, newByText, Limits{MaxQueued: 0, QueueTimeout: time.Minute}, Hooks{})
		holder := mustChoose(t, r, "")
		var p Payload
		for range 2 {
			if _, err := r.Choose(t.Context(), &p); err != ErrQueueFull {
				t.Errorf("Choose = %v; want ErrLineFull", err)
			}
		}
		serve(t, holder)
	})
}

func TestRouterQueueKeepsThePositionOfARequestThatQueuesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)
		r := New(f.replicas, newByText, Limits{MaxQueued: 2, QueueTimeout: time.Minute}, Hooks{})
		a, b := mustChoose(t, r, "a"), mustChoose(t, r, "b")
		all := queueUp(t, r, "ab", "ba")
		late := make(chan *request, 1)
		var newcomer sync.Once
		f.fakes[0].faults = func(op string) error {
			if op == "reserve" {
				newcomer.Do(func() {
					late <- startChoose(t, r, "b")
					time.Sleep(time.Second) // until it is in line
				})
				return llmserver.ErrFull
			}
			return nil
		}
		serve(t, a) // its slot goes to both in turn, is refused, and both line up again
		time.Sleep(10 * time.Second)
		all = append(all, <-late)
		if got := served(all); got != nil || r.QueueLength() != 3 {
			t.Fatalf("%v were served, %d wait", got, r.QueueLength())
		}
		serve(t, b)
		if got := served(all); !slices.Equal(got, []int{1}) { // the older of those who rank b best
			t.Errorf("%v were served", got)
		}
		releaseAll(t, all)
		f.wantIdle(t)
	})
}

func TestRouterQueueServesTenThousandWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, 3)
		r := New(f.replicas, newByText, roomy, Hooks{})
		var all sync.WaitGroup
		for range 10_000 {
			all.Go(func() {
				sel, err := r.Choose(t.Context(), &Payload{})
				if err != nil {
					t.Errorf("Choose: %v", err)
					return
				}
				defer sel.Release()
				time.Sleep(time.Millisecond)
				if _, err := sel.Dispatch(&http.Request{}); err != nil {
					t.Errorf("Dispatch: %v", err)
				}
			})
		}
		began := time.Now()
		all.Wait()
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("10000 ms of work on 5 slots took %v; want 2s: none of them was idle", took)
		}
		f.wantIdle(t)
	})
}
