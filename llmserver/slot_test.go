package llmserver

import (
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
)

func TestSlotOfCompletedRequestIsNotCancelled(t *testing.T) {
	r, f := newTestReplica(1)
	s := mustReserve(t, r)
	wantUsage(t, r, 1, 0)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	wantUsage(t, r, 0, 1)
	resp, err := r.Do(&http.Request{}, s)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	s.Release()
	s.Release()
	r.Wait()
	wantUsage(t, r, 0, 0)
	if n := f.cancelCount(); n != 0 || f.holds() != 0 {
		t.Errorf("%d cancels, %d held; want none", n, f.holds())
	}
}

func TestSlotNeverStartedIsCancelledOnceByToken(t *testing.T) {
	r, f := newTestReplica(1)
	s := mustReserve(t, r)
	s.Release()
	s.Release()
	r.Wait()
	wantUsage(t, r, 0, 0)
	if !f.cancelled[s.Token()] || f.cancelCount() != 1 || f.holds() != 0 {
		t.Errorf("cancelled %v, %d calls, %d held", f.cancelled, f.cancelCount(), f.holds())
	}
}

func TestSlotConfirmCancelsLostRepliesButNotRefusals(t *testing.T) {
	for _, c := range []struct {
		reply   error
		cancels int
	}{
		{errReplyLost, 1},
		{ErrBroken, 1},
		{ErrFull, 0},
		{ErrDraining, 0},
		{ErrGone, 0},
		{ErrNoConnection, 0},
	} {
		t.Run(c.reply.Error(), func(t *testing.T) {
			r, f := newTestReplica(1)
			f.faults = func(op string) error {
				if op == "reserve" {
					return c.reply
				}
				return nil
			}
			s, err := r.TryReserve("holder", 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Confirm(t.Context(), 0); !errors.Is(err, c.reply) {
				t.Fatalf("Confirm = %v; want %v", err, c.reply)
			}
			s.Release()
			r.Wait()
			wantUsage(t, r, 0, 0)
			if f.cancelCount() != c.cancels || f.holds() != 0 {
				t.Errorf("%d cancels, %d held; want %d, 0", f.cancelCount(), f.holds(), c.cancels)
			}
			if err := s.Start(); !errors.Is(err, ErrSpent) {
				t.Errorf("Start after a failed Confirm = %v", err)
			}
		})
	}
}

func TestSlotConfirmWithoutConnectionMarksTheReplicaDown(t *testing.T) {
	r, f := newTestReplica(1)
	f.faults = func(string) error { return ErrNoConnection }
	s, err := r.TryReserve("holder", 0)
	if err != nil {
		t.Fatal(err)
	}
	s.Confirm(t.Context(), 0)
	if r.Available() {
		t.Error("it is still available")
	}
}

func TestSlotStartSucceedsOnce(t *testing.T) {
	r, _ := newTestReplica(1)
	s := mustReserve(t, r)
	var won, spent atomic.Int32
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			switch err := s.Start(); {
			case err == nil:
				won.Add(1)
			case errors.Is(err, ErrSpent):
				spent.Add(1)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 || spent.Load() != 15 {
		t.Errorf("%d won, %d got ErrSpent; want 1, 15", won.Load(), spent.Load())
	}
	wantUsage(t, r, 0, 1)
	s.Release()
	wantUsage(t, r, 0, 0)
}

// A slot that is started and released concurrently must not be subtracted as running before it is
// counted as running.
func TestSlotReleaseRacingWithStartReleasesOnce(t *testing.T) {
	r, _ := newTestReplica(1)
	for range 20_000 {
		s, err := r.TryReserve("holder", 0)
		if err != nil {
			t.Fatal(err)
		}
		race(func() { s.Start() }, s.Release)
		wantUsage(t, r, 0, 0)
	}
	r.Wait()
}

func TestSlotHandOverIsNeverFree(t *testing.T) {
	r, f := newTestReplica(1)
	s := mustReserve(t, r)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	var over, seen atomic.Bool
	var onlooker sync.WaitGroup
	onlooker.Go(func() {
		for !over.Load() {
			if r.HasRoom() {
				seen.Store(true)
			}
		}
	})
	for n := 0; n < 50_000 && !seen.Load(); n++ {
		next := s.HandOver("next")
		if next == nil || next.Start() != nil {
			t.Fatal("the hand-over failed")
		}
		if s.HandOver("second") != nil {
			t.Fatal("a spent slot was handed over")
		}
		s = next
	}
	over.Store(true)
	onlooker.Wait()
	if seen.Load() {
		t.Error("the slot was free in between")
	}
	wantUsage(t, r, 0, 1)
	if f.cancelCount() != 0 {
		t.Errorf("%d cancels for slots that were started", f.cancelCount())
	}
	s.Release()
	wantUsage(t, r, 0, 0)
}

func TestSlotHandOverCancelsReservationByToken(t *testing.T) {
	r, f := newTestReplica(2)
	s := mustReserve(t, r)
	next := s.HandOver("next")
	if next == nil || next.Token() == s.Token() {
		t.Fatalf("HandOver = %v", next)
	}
	r.Wait()
	wantUsage(t, r, 1, 0)
	if !f.cancelled[s.Token()] || f.cancelCount() != 1 {
		t.Errorf("cancelled: %v", f.cancelled)
	}
	next.Release()
	r.Wait()
}

func TestSlotHandOverIsRefusedWhenNothingMayBeAdmitted(t *testing.T) {
	for name, forbid := range map[string]func(*Replica){
		"draining":      (*Replica).Drain,
		"retired":       (*Replica).retire,
		"lowered limit": func(r *Replica) { r.gate.setLimit(1) },
		"ejected":       func(r *Replica) { r.eject(ErrBroken, false) },
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := newTestReplica(2)
			s, other := mustStart(t, r), mustReserve(t, r)
			forbid(r)
			if s.HandOver("next") != nil {
				t.Error("it was handed over")
			}
			wantUsage(t, r, 1, 0)
			other.Release()
			wantUsage(t, r, 0, 0)
			r.Wait()
		})
	}
}

func TestSlotReservedCountsAsLoadAndWhileDraining(t *testing.T) {
	r, _ := newTestReplica(2)
	s := mustReserve(t, r)
	if r.Load() != 1 {
		t.Errorf("the load is %d with one slot reserved", r.Load())
	}
	r.Drain()
	if _, err := r.TryReserve("late", 0); !errors.Is(err, ErrDraining) {
		t.Errorf("TryReserve while draining = %v", err)
	}
	if r.HasRoom() {
		t.Error("a draining replica has room")
	}
	if r.Load() != 1 {
		t.Errorf("the load of the draining replica is %d", r.Load())
	}
	if err := s.Start(); err != nil {
		t.Errorf("what was reserved before the drain is refused: %v", err)
	}
	s.Release()
	wantUsage(t, r, 0, 0)
}

func TestSlotStartFailsOnRetiredReplica(t *testing.T) {
	r, _ := newTestReplica(1)
	s := mustReserve(t, r)
	r.retire()
	if err := s.Start(); !errors.Is(err, ErrGone) {
		t.Errorf("Start = %v", err)
	}
	wantUsage(t, r, 1, 0)
	s.Release()
	wantUsage(t, r, 0, 0)
	r.Wait()
}

func TestReplicaTryReserveStaysBelowItsBound(t *testing.T) {
	r, _ := newTestReplica(5)
	for range 2 {
		if _, err := r.TryReserve("holder", 2); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.TryReserve("holder", 2); !errors.Is(err, ErrFull) {
		t.Errorf("TryReserve at its bound = %v", err)
	}
	if _, err := r.TryReserve("holder", 3); err != nil {
		t.Errorf("TryReserve below its bound = %v", err)
	}
}

func TestReplicaSlotsListsLiveSlots(t *testing.T) {
	r, _ := newTestReplica(3)
	var slots []*Slot
	for _, name := range []string{"a", "b", "c"} {
		s, err := r.TryReserve(name, 0)
		if err != nil {
			t.Fatal(err)
		}
		slots = append(slots, s)
	}
	if err := slots[2].Start(); err != nil {
		t.Fatal(err)
	}
	slots[1].Release()
	got := r.Slots()
	if len(got) != 2 || got[0].Holder != "c" || !got[0].Running || got[1].Holder != "a" || got[1].Running {
		t.Errorf("the live slots are %+v", got)
	}
	slots[0].Release()
	slots[2].Release()
	wantUsage(t, r, 0, 0)
	r.Wait()
}
