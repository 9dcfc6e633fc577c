package routers

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
)

func TestRouterTierOrderBeatsLoad(t *testing.T) {
	f := newFleet(t, 4, 4, 4)
	r := New(f.replicas, newByText, roomy, Hooks{})
	var got string
	for range 10 {
		sel := mustChoose(t, r, "bca")
		defer sel.Release()
		got += sel.Replica().ID()
	}
	if got != "bbbbccccaa" {
		t.Errorf("ten requests went to %s; want a full replica before the next tier is asked", got)
	}
}

func TestRouterLoadDecidesWithinATier(t *testing.T) {
	f := newFleet(t, 4, 4, 4)
	r := New(f.replicas, newByText, roomy, Hooks{})
	for range 2 {
		defer mustChoose(t, r, "a").Release()
	}
	defer mustChoose(t, r, "b").Release() // what is reserved counts
	var got string
	for range 6 {
		sel := mustChoose(t, r, "")
		defer sel.Release()
		got += sel.Replica().ID()
	}
	if got != "cbcabc" {
		t.Errorf("the requests went to %s; want the lightest each time, the first of equals", got)
	}
}

func TestRouterSkipsADrainingReplica(t *testing.T) {
	f := newFleet(t, 1, 1)
	r := New(f.replicas, newByText, roomy, Hooks{})
	f.replicas[0].Drain()
	sel := mustChoose(t, r, "ab")
	defer sel.Release()
	if sel.Replica() != f.replicas[1] {
		t.Errorf("it went to %s", sel.Replica().ID())
	}
}

func TestRouterAsksThePolicyOncePerGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		ranks := new(atomic.Int32)
		r := New(f.replicas, func(members []*llmserver.Replica, _ Policy) Policy {
			return &byText{members, ranks}
		}, roomy, Hooks{})
		holder := mustChoose(t, r, "")
		q := startChoose(t, r, "")
		synctest.Wait()
		if n := ranks.Load(); n != 2 {
			t.Errorf("it was asked %d times by a request and one in line", n)
		}
		r.Refresh()
		if n := ranks.Load(); n != 2 {
			t.Errorf("it was asked %d times after a refresh, before anything came free", n)
		}
		serve(t, holder)
		<-q.done
		if n := ranks.Load(); n != 3 {
			t.Errorf("it was asked %d times when the turn of the one in line had come", n)
		}
		serve(t, q.sel)
	})
}

// policyFunc is a policy that ranks alike for every payload.
type policyFunc iter.Seq[Tier]

func (p policyFunc) Rank(*Payload) iter.Seq[Tier] { return iter.Seq[Tier](p) }

// bounded ranks its members as one tier with a limit of its own.
func bounded(limit int) Builder {
	return func(members []*llmserver.Replica, _ Policy) Policy {
		return policyFunc(func(yield func(Tier) bool) { yield(Tier{Replicas: members, Limit: limit}) })
	}
}

func TestRouterTierLimitBoundsReservations(t *testing.T) {
	f := newFleet(t, 4)
	r := New(f.replicas, bounded(2), Limits{MaxQueued: 0, QueueTimeout: time.Minute}, Hooks{})
	c := r.newSelector(new(Payload), nil)
	for range 2 {
		sel, err := c.selectNow(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer sel.Release()
	}
	if _, err := c.selectNow(t.Context()); !errors.Is(err, llmserver.ErrFull) {
		t.Errorf("a reservation at the tier's limit = %v", err)
	}
	mustChoose(t, r, "").Release() // who would wait takes any free slot
}

func TestRouterExcludedReplicasAreNotChosen(t *testing.T) {
	f := newFleet(t, 2, 2)
	r := New(f.replicas, newByText, roomy, Hooks{})
	for range 2 {
		sel := mustChoose(t, r, "ab", f.replicas[0])
		defer sel.Release()
		if sel.Replica() != f.replicas[1] {
			t.Error("an excluded replica was chosen")
		}
	}
	exclude := []*llmserver.Replica{f.replicas[0], f.replicas[1]}
	_, err := r.Choose(t.Context(), new(Payload), exclude...)
	u, ok := errors.AsType[*UnavailableError](err)
	if !ok || u.Replicas != 2 || u.Tried != 2 || len(u.Reasons) != 0 {
		t.Errorf("with all of them excluded: %v", err)
	}
}

func TestRouterQueueHandsOverNoSlotOfAnExcludedReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)
		r := New(f.replicas, newByText, roomy, Hooks{})
		a, b := mustChoose(t, r, "a"), mustChoose(t, r, "b")
		q := startChoose(t, r, "", f.replicas[0])
		synctest.Wait()
		serve(t, a)
		if synctest.Wait(); q.returned() {
			t.Error("the excluded replica was handed over")
		}
		serve(t, b)
		<-q.done
		serve(t, q.sel)
		f.wantIdle(t)
	})
}

func TestRouterUnavailableErrorNamesReplicasAndReasons(t *testing.T) {
	f := newFleet(t, 1, 1, 1)
	r := New(f.replicas, newByText, roomy, Hooks{})
	f.replicas[0].Drain()
	f.fakes[1].down.Store(true)
	sel, err := r.Choose(t.Context(), new(Payload), f.replicas[2])
	if err == nil {
		sel.Release()
		t.Fatal("a replica that is down was chosen")
	}
	for _, part := range []string{"none of 3 replicas", "a: draining", "b: no connection"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}

func TestRouterTriesTheNextReplicaAfterARejection(t *testing.T) {
	f := newFleet(t, 4, 4)
	var rejected []string
	r := New(f.replicas, newByText, roomy, Hooks{Rejected: func(_ *Payload, replica string, err error) {
		rejected = append(rejected, replica+": "+err.Error())
	}})
	f.fakes[0].faults = func(op string) error {
		if op == "reserve" {
			return errReplyLost
		}
		return nil
	}
	exclude := make([]*llmserver.Replica, 0, 4)
	sel := mustChoose(t, r, "ab", exclude...)
	if sel.Replica() != f.replicas[1] || !slices.Equal(rejected, []string{"a: " + errReplyLost.Error()}) {
		t.Errorf("it went to %s after %q", sel.Replica().ID(), rejected)
	}
	if exclude[:1][0] != nil {
		t.Error("the caller's slice was written to")
	}
	serve(t, sel)
	f.wantIdle(t)
	if n := f.fakes[0].cancels; n != 1 {
		t.Errorf("the lost reservation was cancelled %d times", n)
	}
}

func TestRouterReportsNoRejectionAfterADisconnect(t *testing.T) {
	f := newFleet(t, 1)
	r := New(f.replicas, newByText, roomy, Hooks{Rejected: func(*Payload, string, error) { t.Error("it was rejected") }})
	why := errors.New("hung up")
	ctx, hangUp := context.WithCancelCause(t.Context())
	f.fakes[0].faults = func(string) error {
		hangUp(why)
		return errReplyLost
	}
	if _, err := r.Choose(ctx, new(Payload)); err != why {
		t.Errorf("Choose = %v; want its cause", err)
	}
	if _, err := r.Choose(ctx, new(Payload)); err != why {
		t.Errorf("Choose with a context that has ended = %v; want its cause", err)
	}
	f.wantIdle(t)
}

func TestRouterMembersAndPolicyAreThoseOfTheLastUpdate(t *testing.T) {
	f := newFleet(t, 1, 1)
	r := New(f.replicas[:1], newRoundRobin, roomy, Hooks{})
	before := r.Policy()
	r.Refresh()
	if r.Policy() != before {
		t.Error("a refresh built a policy")
	}
	given := slices.Clone(f.replicas)
	r.Update(given, newByText, roomy)
	given[0] = nil // the router's own are not touched
	if _, ok := r.Policy().(*byText); !ok || !slices.Equal(r.Members(), f.replicas) {
		t.Errorf("policy %T over %v", r.Policy(), r.Members())
	}
}

// A client that goes while a replica says no is not told of the replica.
func TestRouterDisconnectDuringARefusalReturnsTheCause(t *testing.T) {
	f := newFleet(t, 1)
	f.fakes[0].faults = func(string) error { return llmserver.ErrFull }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := New(f.replicas, newByText, roomy, Hooks{Rejected: func(*Payload, string, error) { cancel() }})
	if _, err := r.Choose(ctx, &Payload{}); err != context.Canceled {
		t.Errorf("Choose = %v", err)
	}
	f.wantIdle(t)
}
