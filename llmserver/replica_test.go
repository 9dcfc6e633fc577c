package llmserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// An agent that has not seen the request would hold its reservation until the lease ends.
func TestReplicaDoCancelsReservationAfterFailure(t *testing.T) {
	for _, c := range []struct {
		err     error
		plain   bool // no agent counts
		cancels int
	}{
		{err: ErrNoConnection, cancels: 1},
		{err: ErrExhausted, cancels: 1},
		{err: ErrBroken, cancels: 1},
		{err: context.Canceled, cancels: 1},
		{err: ErrToken}, // these come from the agent, which has ended the reservation
		{err: ErrFull},
		{err: ErrDraining},
		{err: ErrNoConnection, plain: true},
	} {
		t.Run(fmt.Sprintf("%v, plain: %t", c.err, c.plain), func(t *testing.T) {
			r, b, _ := newReportingReplica(1)
			if c.plain {
				e := r.Endpoint()
				e.CountsSlots = false
				r.describe(e)
			}
			s := mustStart(t, r)
			b.faults = func(op string) error {
				if op == "do" {
					return c.err
				}
				return nil
			}
			if _, err := r.Do(&http.Request{}, s); !errors.Is(err, c.err) {
				t.Fatalf("Do = %v; want %v", err, c.err)
			}
			s.Release()
			r.Wait()
			if b.cancelCount() != c.cancels || b.cancelled[s.Token()] != (c.cancels > 0) {
				t.Errorf("%d cancels of %v; want %d of the slot's own token", b.cancelCount(), b.cancelled, c.cancels)
			}
			wantUsage(t, r, 0, 0)
		})
	}
}

// Exhaustion of this process is reported as such for every kind of call.
func TestReplicaReportsExhaustionOfCallsAndCancels(t *testing.T) {
	for name, c := range map[string]struct {
		err                     error
		call                    func(r *Replica)
		exhausted, cancelFailed int
	}{
		"a call":                     {ErrExhausted, func(r *Replica) { r.Call(&http.Request{}) }, 1, 0},
		"a cancel":                   {ErrExhausted, func(r *Replica) { r.cancelToken(NewUUID()) }, 1, 0},
		"a call to a dead replica":   {ErrNoConnection, func(r *Replica) { r.Call(&http.Request{}) }, 0, 0},
		"a cancel at a dead replica": {ErrNoConnection, func(r *Replica) { r.cancelToken(NewUUID()) }, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r, b, _ := newReportingReplica(1)
			b.faults = func(string) error { return c.err }
			var exhausted, cancelFailed int
			r.events = Events{
				Exhausted:    func(error) { exhausted++ },
				CancelFailed: func(string, error) { cancelFailed++ },
			}
			c.call(r)
			r.Wait()
			if exhausted != c.exhausted || cancelFailed != c.cancelFailed {
				t.Errorf("%d times exhausted, %d failed cancels; want %d, %d", exhausted, cancelFailed, c.exhausted, c.cancelFailed)
			}
			if !r.Available() {
				t.Error("a call that takes no slot has marked the replica down")
			}
		})
	}
}

func TestReplicaErrorsCarryTheLabel(t *testing.T) {
	r, fake := newTestReplica(1)
	fake.faults = func(string) error { return ErrBroken }
	if _, err := r.Call(&http.Request{}); r.Label() != "r" || err.Error() != "replica r: "+ErrBroken.Error() {
		t.Errorf("without a label it is %q, and the error is %v", r.Label(), err)
	}
	e := r.Endpoint()
	e.ID, e.Label = "http://10.0.0.1:8000", "replica-1"
	r.describe(e)
	if _, err := r.Call(&http.Request{}); r.Label() != "replica-1" || err.Error() != "replica replica-1: "+ErrBroken.Error() {
		t.Errorf("with a label it is %q, and the error is %v", r.Label(), err)
	}
}

func TestReplicaSlotsListHolderAndAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newTestReplica(2)
		began := time.Now()
		s := reserveUnconfirmed(t, r)
		s.Rename("the next in the queue")
		time.Sleep(time.Minute)
		got := r.Slots()
		if len(got) != 1 || got[0].Holder != "the next in the queue" || !got[0].Since.Equal(began) {
			t.Errorf("the slots are %+v; want one of the new holder, since %v", got, began)
		}
		s.Release()
		r.Wait()
	})
}
