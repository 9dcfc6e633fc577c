package llmserver

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// Token names a reserved slot. Whoever asks for the slot mints it first, so
// that a reservation whose reply was lost can be cancelled by name.
type Token = uuid.UUID

// NewUUID is a random UUID, for tokens and request ids. The runtime's generator (ChaCha8, seeded by the system) has a state for each
// thread, so that minting costs neither a lock nor memory.
func NewUUID() (t uuid.UUID) {
	binary.NativeEndian.PutUint64(t[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(t[8:], rand.Uint64())
	t[6], t[8] = t[6]&0x0f|0x40, t[8]&0x3f|0x80 // version 4, variant of RFC 9562
	return t
}

// Slot is one unit of a replica's capacity, held for one request.
//
//	           Start             Release, HandOver
//	reserved ─────────▶ running ───────────────────▶ done
//	    └───────────────────────────────────────────▶ done
//	          Release, HandOver, a failed Confirm
//
// Every edge is one compare-and-swap on the slot's own state, and the winner
// alone moves the replica's counts. All methods may be called at any time,
// from any goroutine, any number of times.
type Slot struct {
	replica    *Replica
	token      Token
	holder     string        // under the replica's mutex
	reservedAt time.Duration // when it was claimed, by monotonic time
	state      atomic.Uint32

	// These belong to who holds the slot.
	confirmed      bool          // by the backend
	sentAt         time.Duration // when its request was sent, by monotonic time; zero before
	readsAtSend    uint64        // how many reads had brought something until then, see health
	body           slotBody      // of the response
	failureCounted bool          // as a failure of the replica

	prev, next *Slot // in the replica's list of live slots, under its mutex
}

const (
	slotReserved uint32 = iota
	slotRunning
	slotDone
)

// Replica is the one that the slot is on.
func (s *Slot) Replica() *Replica { return s.replica }

// Token is the slot's name towards the backend.
func (s *Slot) Token() Token { return s.token }

// Confirm asks the backend to hold the slot that the gate has granted, and to wait for it as long
// as wait says. One that is confirmed already stays so. On an error the slot is done; unless the
// error is Refused the backend may hold it all the same, so it is cancelled by name. Only one
// goroutine may confirm a slot.
func (s *Slot) Confirm(ctx context.Context, wait time.Duration) error {
	if s.confirmed {
		return nil
	}
	r := s.replica
	report, err := r.backend.Reserve(ctx, s.token, wait)
	r.applyReport(report)
	if err == nil {
		s.confirmed = true
		return nil
	}
	if ctx.Err() == nil {
		r.recordFailure(s, unclear(err))
	}
	if unit, ok := s.markDone(); ok {
		r.gate.release(unit)
		if !Refused(err) {
			r.cancelToken(s.token)
		}
	}
	return err
}

// Rename gives a slot that is handed on, before it was started, another holder.
func (s *Slot) Rename(holder string) {
	s.replica.mu.Lock()
	defer s.replica.mu.Unlock()
	s.holder = holder
}

// Start is the edge from reserved to running. ErrSpent if the slot is not
// reserved any more; ErrGone if its replica has left the set, and then the slot
// stays reserved.
func (s *Slot) Start() error {
	if s.replica.gate.counts().phase == retired {
		return ErrGone
	}
	// end passes the same mutex before its unit is accounted for, so that a
	// running slot is never given back before it was counted as running.
	s.replica.mu.Lock()
	defer s.replica.mu.Unlock()
	if !s.state.CompareAndSwap(slotReserved, slotRunning) {
		return ErrSpent
	}
	s.replica.gate.start()
	return nil
}

// Release ends the slot, whatever its state; a second call does nothing. It
// returns nothing, so that it cannot mask an error, and it asks the backend to
// cancel only a slot that was never started.
func (s *Slot) Release() {
	if unit, ok := s.markDone(); ok {
		s.replica.gate.release(unit)
		s.cancelReservation(unit)
	}
}

// HandOver ends the slot as Release does, but its unit is reserved for the
// next holder in the same step and is free at no moment in between. It returns
// nil where that cannot be: the slot was done already, the replica is leaving or ejected, or its
// capacity was lowered below what is ongoing; the unit is then given back. The
// new slot is yet to be confirmed.
func (s *Slot) HandOver(holder string) *Slot {
	unit, ok := s.markDone()
	if !ok {
		return nil
	}
	defer s.cancelReservation(unit)
	if !s.replica.passCircuit() || s.replica.gate.transfer(unit) != nil {
		s.replica.gate.release(unit)
		return nil
	}
	heir := new(Slot)
	s.replica.initSlot(heir, holder)
	return heir
}

// end is the edge to done; the one caller that wins it gets the unit to account for.
func (s *Slot) markDone() (unit uint64, ok bool) {
	for {
		state := s.state.Load()
		if state == slotDone {
			return 0, false
		}
		if !s.state.CompareAndSwap(state, slotDone) {
			continue // it was started just now
		}
		s.replica.unlinkSlot(s)
		if state == slotRunning {
			return oneRunning, true
		}
		return oneReserved, true
	}
}

// cancel tells the backend that a slot which was only reserved will not be used.
func (s *Slot) cancelReservation(unit uint64) {
	if unit == oneReserved {
		s.replica.cancelToken(s.token)
	}
}
