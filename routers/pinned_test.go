package routers

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
)

// startPinned calls Choose for a request that is pinned to one replica.
func startPinned(t *testing.T, r *Router, only *llmserver.Replica) *request {
	q := &request{payload: Payload{PinnedTo: only}, done: make(chan struct{}), cancel: func(error) {}}
	began := time.Now()
	go func() {
		defer close(q.done)
		q.sel, q.err = r.Choose(t.Context(), &q.payload)
		q.took = time.Since(began)
	}()
	return q
}

func TestRouterPinnedRequestGoesToItsReplica(t *testing.T) {
	onEveryPolicy(t, func(t *testing.T, fleet *fleet, build Builder, _ int) {
		r := New(fleet.replicas, build, roomy, Hooks{})
		for _, only := range fleet.replicas {
			for range 3 {
				sel, err := r.Choose(t.Context(), &Payload{PinnedTo: only})
				if err != nil {
					t.Fatal(err)
				}
				defer sel.Release()
				if sel.Replica() != only {
					t.Fatalf("it went to %s, not %s", sel.Replica().ID(), only.ID())
				}
			}
		}
	})
}

func TestRouterPinnedRequestDoesNotAskThePolicy(t *testing.T) {
	f := newFleet(t, 4, 4)
	var ranks atomic.Int32
	r := New(f.replicas, func(members []*llmserver.Replica, _ Policy) Policy { return &byText{members, &ranks} }, roomy, Hooks{})
	sel, err := r.Choose(t.Context(), &Payload{PinnedTo: f.replicas[1]})
	if err != nil {
		t.Fatal(err)
	}
	sel.Release()
	if n := ranks.Load(); n != 0 {
		t.Errorf("the policy was asked %d times", n)
	}
}

// It waits for its replica while another one is free, and leaves that one to older and younger
// requests.
func TestRouterPinnedRequestWaitsForItsReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)
		r := New(f.replicas, newByText, roomy, Hooks{})
		holder := mustChoose(t, r, "a")
		pinned := startPinned(t, r, f.replicas[0])
		synctest.Wait()
		if pinned.returned() || r.QueueLength() != 1 {
			t.Fatalf("it is not in the queue: %v", pinned.err)
		}
		for range 3 {
			other := startChoose(t, r, "ab")
			synctest.Wait()
			if !other.returned() || other.sel.Replica() != f.replicas[1] {
				t.Fatal("another request waits behind one that cannot use the free slot")
			}
			serve(t, other.sel)
		}
		time.Sleep(time.Second)
		serve(t, holder)
		<-pinned.done
		if pinned.err != nil || pinned.sel.Replica() != f.replicas[0] || pinned.took != time.Second {
			t.Fatalf("it got %v after %v", pinned.err, pinned.took)
		}
		serve(t, pinned.sel)
		f.wantIdle(t)
	})
}

func TestRouterPinnedRequestFailsWithoutItsReplica(t *testing.T) {
	f := newFleet(t, 1, 1)
	r := New(f.replicas, newByText, roomy, Hooks{})
	refused := func(only *llmserver.Replica, said string, exclude ...*llmserver.Replica) {
		t.Helper()
		sel, err := r.Choose(t.Context(), &Payload{PinnedTo: only}, exclude...)
		if _, ok := errors.AsType[*UnavailableError](err); !ok || !strings.Contains(err.Error(), said) {
			t.Errorf("it got %v and %v", sel, err)
		}
	}
	refused(f.replicas[0], "1 tried in vain", f.replicas[0])
	f.replicas[0].Drain()
	refused(f.replicas[0], "a: draining")
	refused(newFleet(t, 1).replicas[0], "there is no replica")
}

func TestRouterPinnedWaitEndsWhenTheReplicaLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)
		r := New(f.replicas, newByText, roomy, Hooks{})
		holder := mustChoose(t, r, "a")
		pinned := startPinned(t, r, f.replicas[0])
		synctest.Wait()
		r.Update(slices.Clone(f.replicas), newByText, roomy)
		synctest.Wait()
		if pinned.returned() {
			t.Fatalf("a change that keeps its replica ended it: %v", pinned.err)
		}
		r.Update(f.replicas[1:], newByText, roomy)
		<-pinned.done
		if _, ok := errors.AsType[*UnavailableError](pinned.err); !ok {
			t.Errorf("it got %v", pinned.err)
		}
		serve(t, holder)
		f.wantIdle(t)
	})
}

// A draining replica accepts nothing new: a request that is pinned to it no longer waits, though
// others have room.
func TestRouterPinnedWaitEndsWhenTheReplicaDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)
		r := newWatchingRouter(f, newByText, roomy)
		holder := mustChoose(t, r, "a")
		pinned := startPinned(t, r, f.replicas[0])
		synctest.Wait()
		f.replicas[0].Drain()
		<-pinned.done
		if _, ok := errors.AsType[*UnavailableError](pinned.err); !ok || pinned.took != 0 {
			t.Errorf("it got %v after %v", pinned.err, pinned.took)
		}
		serve(t, holder)
	})
}

func TestRouterPinnedRequestHasNoPreferredReplica(t *testing.T) {
	onEveryPolicy(t, func(t *testing.T, fleet *fleet, build Builder, _ int) {
		r := New(fleet.replicas, build, roomy, Hooks{Decided: func(d Decision) {
			if _, preferred, lost := d.Explain(nil, 10); preferred != nil || lost != "" || d.Rank != 1 {
				t.Errorf("rank %d, and %s was preferred: %s", d.Rank, preferred.ID(), lost)
			}
		}})
		for _, only := range fleet.replicas {
			for range 3 {
				sel, err := r.Choose(t.Context(), &Payload{PinnedTo: only, SessionID: "s", Blocks: []uint64{1, 2, 3}})
				if err != nil {
					t.Fatal(err)
				}
				defer sel.Release()
			}
		}
	})
}
