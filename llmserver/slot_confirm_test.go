package llmserver

import (
	"context"
	"errors"
	"runtime"
	"testing"
)

// A reservation that may have been granted, but of which nothing was heard, takes the replica out of use until a probe
// has reached it. A refusal says that it is well.
func TestSlotConfirmWithUnknownOutcomeMarksTheReplicaDown(t *testing.T) {
	for _, c := range []struct {
		err error
		up  bool
	}{
		{errReplyLost, false},
		{ErrBroken, false},
		{ErrTimeout, false},
		{context.DeadlineExceeded, false}, // the time of the control call is over
		{ErrNoConnection, false},
		{ErrDraining, false},
		{ErrFull, true},
		{ErrToken, true},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			r, fake := newTestReplica(1)
			fake.faults = func(op string) error {
				if op == "reserve" {
					return c.err
				}
				return nil
			}
			if err := reserveUnconfirmed(t, r).Confirm(t.Context(), 0); !errors.Is(err, c.err) {
				t.Fatalf("Confirm = %v; want %v", err, c.err)
			}
			r.Wait()
			if r.Up() != c.up {
				t.Errorf("up: %t; want %t", r.Up(), c.up)
			}
		})
	}
}

// A client that disconnects during the reservation is no sign of a sick replica.
func TestSlotConfirmAfterClientDisconnectIsNoFailure(t *testing.T) {
	r, fake := newTestReplica(1)
	for range 2 * maxFailures {
		ctx, leave := context.WithCancel(t.Context())
		fake.faults = func(op string) error {
			if op == "reserve" {
				leave()
			}
			return ctx.Err()
		}
		if err := reserveUnconfirmed(t, r).Confirm(ctx, 0); !errors.Is(err, context.Canceled) {
			t.Fatalf("Confirm = %v", err)
		}
		r.Wait()
	}
	if s := r.circuit.state(); !r.Available() || s.failures != 0 {
		t.Errorf("available: %t, %d failures, it said %q", r.Available(), s.failures, r.DownReason())
	}
	if fake.cancelCount() != 2*maxFailures {
		t.Errorf("%d cancels", fake.cancelCount())
	}
	wantUsage(t, r, 0, 0)
}

func TestSlotConfirmCallsTheBackendOnce(t *testing.T) {
	r, fake := newTestReplica(1)
	s := mustReserve(t, r)
	if err := s.Confirm(t.Context(), 0); err != nil || fake.reserves != 1 {
		t.Errorf("the second Confirm = %v, after which the backend was asked %d times", err, fake.reserves)
	}
	s.Release()
	r.Wait()
}

// Start must not come between the end of a slot and what that end accounts for, both under the replica's mutex: a
// slot that is ended as a running one is counted as running by then.
func TestSlotStartLocksTheReplicasMutex(t *testing.T) {
	r, _ := newTestReplica(1)
	s := reserveUnconfirmed(t, r)
	r.mu.Lock()
	started := make(chan error)
	go func() { started <- s.Start() }()
	for range 10_000 {
		runtime.Gosched() // so the other goroutine runs
		if s.state.Load() != slotReserved {
			t.Error("it was started meanwhile")
			break
		}
	}
	r.mu.Unlock()
	if err := <-started; err != nil {
		t.Error(err)
	}
	wantUsage(t, r, 0, 1)
	s.Release()
}
