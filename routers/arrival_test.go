package routers

import (
	"slices"
	"testing"
	"testing/synctest"
)

func TestRouterQueueServesTheBestRankingWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)
		r := New(f.replicas, newByText, roomy, Hooks{})
		a, b := mustChoose(t, r, "a"), mustChoose(t, r, "b")
		all := queueUp(t, r, "b", "ba", "ab", "ab")
		serve(t, a)
		if got := served(all); !slices.Equal(got, []int{2}) {
			t.Errorf("the slot of a went to %v", got)
		}
		serve(t, b)
		if got := served(all); !slices.Equal(got, []int{0, 2}) {
			t.Errorf("the slot of b went to %v", got)
		}
		releaseAll(t, all)
		f.wantIdle(t)
	})
}

func TestRouterQueueArrivalOvertakesOnlyWaitersThatCannotUseTheSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)
		r := New(f.replicas, newByText, roomy, Hooks{})
		a := mustChoose(t, r, "a")
		waiting := queueUp(t, r, "a")
		arrival := startChoose(t, r, "ab")
		if got := served([]*request{arrival}); got == nil || arrival.sel.Replica().ID() != "b" {
			t.Fatal("an arrival waits behind one who cannot use the slot")
		}
		second := queueUp(t, r, "a")
		serve(t, a)
		if got := served(append(waiting, second...)); !slices.Equal(got, []int{0}) {
			t.Errorf("%v were served", got)
		}
		releaseAll(t, append(waiting, second[0], arrival))
		f.wantIdle(t)
	})
}

func TestRouterQueueArrivalLeavesTheSlotToTheOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		r := New(f.replicas, newByText, roomy, Hooks{})
		holder := mustChoose(t, r, "")
		all := queueUp(t, r, "")
		f.setLimit(t, 0, 2) // which the router has not been told of
		all = append(all, startChoose(t, r, ""))
		if got := served(all); !slices.Equal(got, []int{0}) {
			t.Errorf("%v were served", got)
		}
		serve(t, holder)
		releaseAll(t, all)
		f.wantIdle(t)
	})
}

func TestRouterQueueArrivalIsRankedWhileOthersWait(t *testing.T) {
	for text, want := range map[string]string{"bc": "b", "cb": "c", "": "c"} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 1, 2, 2)
			r := New(f.replicas, newByText, roomy, Hooks{})
			a, b := mustChoose(t, r, "a"), mustChoose(t, r, "b")
			all := queueUp(t, r, "a")
			arrival := mustChoose(t, r, text)
			if got := arrival.Replica().ID(); got != want {
				t.Errorf("ranking %q with b loaded it went to %s; want %s", text, got, want)
			}
			for _, sel := range []*Selection{a, b, arrival} {
				serve(t, sel)
			}
			releaseAll(t, all)
			f.wantIdle(t)
		})
	}
}

// Time stands still in the bubble while anybody can go on: if a request lined up
// unseen by the release of the only slot, the wait would last until its deadline.
func TestRouterQueueReleaseAndArrivalSeeEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		r := New(f.replicas, newByText, roomy, Hooks{})
		sel := mustChoose(t, r, "")
		for range 20_000 {
			heir := make(chan *Selection)
			go func() {
				sel, err := r.Choose(t.Context(), new(Payload))
				if err != nil {
					t.Errorf("Choose: %v", err)
				}
				heir <- sel
			}()
			serve(t, sel)
			if sel = <-heir; sel == nil {
				return
			}
		}
		serve(t, sel)
		f.wantIdle(t)
	})
}
