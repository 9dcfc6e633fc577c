package llmserver

import (
	"context"
	"errors"
	"runtime"
	"testing"
)

// A reservation whose outcome is unknown marks the replica down until a probe succeeds. A refusal
// shows that the replica is healthy.
func TestSlotConfirmWithUnknownOutcomeMarksTheReplicaDown(t *testing.T) {
	for _, c := range []struct {
		err error
		up  bool
	}{
		{errReplyLost, false},
		{ErrBroken, false},
		{ErrTimeout, false},
		{context.DeadlineExceeded, false}, // the control call timed out
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

// A client disconnect during the reservation is no sign of a failing replica.
func TestSlotConfirmAfterClientDisconnectIsNoFailure(t *testing.T) {
	r, fake := newTestReplica(1)
	for range 2 * minFailures {
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
	if n := r.outcomes.failures(); !r.Available() || n != 0 {
		t.Errorf("available: %t, %d failures, reason %q", r.Available(), n, r.DownReason())
	}
	if fake.cancelCount() != 2*minFailures {
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

// Start changes the slot's state and the gate's counts under the replica's mutex. Otherwise a
// Release in between would release a running unit that is not counted yet.
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
