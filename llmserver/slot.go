package llmserver

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// A Slot is one unit of a replica's capacity, held for one request.
//
//	           Start             Release, HandOver
//	reserved ─────────▶ running ───────────────────▶ done
//	    └───────────────────────────────────────────▶ done
//	          Release, HandOver, a failed Confirm
//
// Every edge is one compare-and-swap on the slot's own state. The goroutine that wins the edge to
// done, and no other, returns the slot's unit to the replica's gate. A slot can therefore neither
// leak nor be returned twice, whatever calls race.
//
// Start, Release, HandOver, Replica and Token may be called from any goroutine, any number of
// times. Confirm, Replica.Do and the methods for failures belong to the goroutine holding the slot:
// the request's, or that of an agent wait.
type Slot struct {
	replica    *Replica
	token      Token
	holder     string        // guarded by replica.mu
	reservedAt time.Duration // monotonic
	state      atomic.Uint32

	// These belong to the goroutine holding the slot, until sentAt is set: from then on stream,
	// abort and size do not change and are read by others, see Replica.ejectIfSilent.
	confirmed   bool          // the backend holds the slot too
	request     Fingerprinter // unless nil
	stream      bool          // the request is for an event stream
	abort       func(error)   // unless nil, see OnSilence
	size        int64         // bytes of the request body
	readsAtSend uint64        // health.bodyReads when the request was sent, see Abandoned
	body        slotBody      // of the response
	failure     failureCount  // of the request

	sentAt    atomic.Int64  // monotonic; zero until the request is sent
	firstByte atomic.Uint32 // awaited, arrived or givenUp
	complete  bool          // a good response was read to its end; belongs to the goroutine, too

	prev, next *Slot // in the replica's list of live slots, guarded by replica.mu
}

const (
	slotReserved uint32 = iota
	slotRunning
	slotDone
)

// A Fingerprinter is a request with a fingerprint, by which a request sent again is recognized. It
// is asked only after a failure. A fingerprint of 0 is unlike any other.
type Fingerprinter interface{ Fingerprint() uint64 }

// The states of a slot's first byte of a good response. Arrival and the end of the wait exclude
// each other: a request that was given up gets no byte, so the client has got nothing and a retry
// may follow.
const (
	awaited uint32 = iota
	arrived
	givenUp
)

// A failureCount is the state of a slot's failure in the comparison of replicas.
type failureCount uint8

const (
	notFailed   failureCount = iota
	failed                   // counted
	failedAgain              // not counted, as an equal request has failed before
	excused                  // taken back
)

// SetRequest describes the request to be sent in the slot: f may be nil, and stream is true if the
// request is for an event stream. It must be called before Replica.Do.
func (s *Slot) SetRequest(f Fingerprinter, stream bool) { s.request, s.stream = f, stream }

// OnSilence sets the function that ends the slot's request if the replica is found to hang, before
// the first byte of a response. abort is called from the goroutine of another request, at most a
// few times and perhaps after the end of the slot, and must not block. OnSilence must be called
// before Replica.Do.
func (s *Slot) OnSilence(abort func(error)) { s.abort = abort }

func (s *Slot) fingerprint() uint64 {
	if s.request == nil {
		return 0
	}
	return s.request.Fingerprint()
}

// Replica returns the slot's replica.
func (s *Slot) Replica() *Replica { return s.replica }

// Token returns the slot's name towards the backend.
func (s *Slot) Token() Token { return s.token }

// Confirm asks the backend to hold the slot granted by the gate, and to queue for at most wait.
// Confirm blocks for the backend's reply; a confirmed slot returns nil at once.
//
// After an error the slot is done. Unless the error is Refused, the backend may hold the slot even
// so (the reply may be lost, not the reservation), and the token is cancelled in the background.
// The cancel is sent only by the winner of the edge to done: a concurrent Release sends its own.
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
	refused, cause := Refused(err), err
	if !refused {
		cause = fmt.Errorf("%w: %w", errUnclear, err)
	}
	if ctx.Err() == nil { // otherwise the caller gave up, which is no sign of a failing replica
		r.handleFailure(s, cause)
	}
	if unit, ok := s.markDone(); ok {
		r.gate.releaseUnit(unit)
		if !refused {
			r.cancelToken(s.token)
		}
	}
	return err
}

// Rename changes the holder listed by Replica.Slots, for a slot that moves to another request
// before Start.
func (s *Slot) Rename(holder string) {
	s.replica.mu.Lock()
	defer s.replica.mu.Unlock()
	s.holder = holder
}

// Start takes the edge from reserved to running. Of concurrent calls exactly one succeeds, so a
// slot is dispatched at most once. Start returns ErrSpent if the slot is no longer reserved, and
// ErrGone if its replica was retired; in that case the slot stays reserved. Start does no I/O.
func (s *Slot) Start() error {
	if s.replica.gate.counts().phase == retired {
		return ErrGone
	}
	// markDone locks the same mutex before its caller returns the unit. Without the mutex, a
	// Release between the two steps below would see a running slot and subtract a running unit not
	// yet counted by the gate.
	s.replica.mu.Lock()
	defer s.replica.mu.Unlock()
	if !s.state.CompareAndSwap(slotReserved, slotRunning) {
		return ErrSpent
	}
	s.replica.gate.startUnit()
	return nil
}

// Release ends the slot in any state; a second call does nothing. There is no error result, so a
// deferred Release cannot mask an error. Release does not block: only a slot never started is
// cancelled at the backend, in the background.
func (s *Slot) Release() {
	if unit, ok := s.markDone(); ok {
		s.replica.gate.releaseUnit(unit)
		s.cancelIfReserved(unit)
	}
}

// HandOver ends the slot as Release does and reserves the unit for the next holder in the same step
// of the gate. The unit is free at no moment, so no other request can take the unit in between.
//
// HandOver returns nil if the slot was done already, or if nothing may be admitted: the replica is
// draining, retired or ejected, or more is ongoing than a lowered limit allows. In all cases
// but the first the unit was released. The new slot is not confirmed yet.
func (s *Slot) HandOver(holder string) *Slot {
	unit, ok := s.markDone()
	if !ok {
		return nil
	}
	defer s.cancelIfReserved(unit)
	if !s.replica.passCircuit() || s.replica.gate.transferUnit(unit) != nil {
		s.replica.gate.releaseUnit(unit)
		return nil
	}
	next := new(Slot)
	s.replica.initSlot(next, holder)
	return next
}

// markDone takes the edge to done. Exactly one caller gets ok, along with the unit to release or
// transfer.
func (s *Slot) markDone() (unit uint64, ok bool) {
	for {
		state := s.state.Load()
		if state == slotDone {
			return 0, false
		}
		if !s.state.CompareAndSwap(state, slotDone) {
			continue // started or ended meanwhile
		}
		s.replica.unlinkSlot(s)
		if state == slotRunning {
			return oneRunning, true
		}
		return oneReserved, true
	}
}

// cancelIfReserved cancels the slot's token at the backend if the slot was never started. The
// backend ends a started slot by itself, with the response.
func (s *Slot) cancelIfReserved(unit uint64) {
	if unit == oneReserved {
		s.replica.cancelToken(s.token)
	}
}
