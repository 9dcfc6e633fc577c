package llmserver

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// This file is where what requests say of a replica becomes its standing.
//
// Certain at once, and down until a probe has reached it: no connection, draining, a reservation
// without a clear answer. Down is counted as a failure too, once each time, so that a replica which
// answers its probes and nothing else is ejected in the end.
//
// Counted, and ejected after so many in a row: a connection that broke before the first byte or was
// given up for its silence, an answer that is not HTTP, a 502, 503 or 504 that is no refusal, and
// silence that others have not, see Abandoned.
//
// A good answer clears the count. All else says nothing: 4xx and 500, which requests bring about
// themselves (a prompt that is too long); refusals; an old connection that broke; whatever ends
// because the client went away; and ErrExhausted, which is this process's own fault.

// suspiciousSilence is how long a replica must have sent nothing for that to count against it, and how far apart such
// counts are: a client that gives up many requests at once is one sign, not many.
const suspiciousSilence = 2 * time.Second

// failed records why a request, or its reservation, came to nothing.
func (r *Replica) recordFailure(s *Slot, err error) {
	switch {
	case errors.Is(err, ErrExhausted):
		r.reportExhausted(err)
	case errors.Is(err, ErrNoConnection), errors.Is(err, errUnclear):
		if r.markDown(err) || r.circuit.state().isOpen() {
			r.countFailure(s, err)
		}
	case errors.Is(err, ErrDraining):
		r.markDown(err)
	case errors.Is(err, ErrStale):
	case errors.Is(err, ErrBroken), errors.Is(err, ErrTimeout), errors.Is(err, ErrNotHTTP), errors.Is(err, ErrGateway),
		errors.Is(err, ErrSilent):
		r.countFailure(s, err)
	}
}

// exhausted reports that this process could not connect for want of its own resources. Nothing is
// learned about the replica.
func (r *Replica) reportExhausted(err error) {
	if r.events.Exhausted != nil {
		r.events.Exhausted(err)
	}
}

// count counts a failure against the replica, once for each slot.
func (r *Replica) countFailure(s *Slot, err error) {
	if s.failureCounted {
		return
	}
	s.failureCounted = true
	ejected := r.circuit.recordFailure(s.reservedAt, err)
	if ejected == 0 {
		return
	}
	// Who waits can use the replica again when its time is over. Being late, or after the replica
	// has gone, does no harm.
	time.AfterFunc(ejected, r.health.notify)
	r.health.notify()
}

// enter reports whether the circuit lets a request in. Who waits may use the replica again if the verdict on a
// trial does not come in time.
func (r *Replica) passCircuit() bool {
	trial, ok := r.circuit.tryAdmit()
	if trial {
		time.AfterFunc(trialTimeout, r.health.notify)
	}
	return ok
}

// listen has the bytes of a response counted, and the first of a good one close the circuit.
func (r *Replica) observeBody(s *Slot, resp *http.Response) {
	s.body = slotBody{ReadCloser: resp.Body, slot: s, good: resp.StatusCode < http.StatusBadRequest}
	resp.Body = &s.body
}

// slotBody is the body of a response in a slot. Its end without any byte says nothing: a stream may
// end so because its process died.
type slotBody struct {
	io.ReadCloser
	slot *Slot
	good bool // and no byte of it has been seen yet
}

func (b *slotBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		r := b.slot.replica
		r.health.bodyReads.Add(1)
		if b.good {
			b.good = false
			r.health.lastResponse.Store(int64(monotonic()))
			if r.circuit.recordSuccess(b.slot.reservedAt) {
				r.markRecovered()
				r.health.notify()
			}
		}
	}
	return n, err
}

// Abandoned records that the request in the slot was given up, by its client or for lack of time. That counts
// against the replica if it has sent no byte of a body to anybody since it got the request, for 2 s or more, while one of
// its siblings began one: then it hangs, and its clients leave before anything else fails. Headers say nothing; engines send
// that of a stream before they begin to work. It is for streams: what is not streamed is silent until it is complete.
func (s *Slot) Abandoned(siblings []*Replica) {
	r, now := s.replica, monotonic()
	if s.sentAt == 0 || now-s.sentAt < suspiciousSilence || r.health.bodyReads.Load() != s.readsAtSend {
		return
	}
	for _, other := range siblings {
		if other == r || time.Duration(other.health.lastResponse.Load()) <= s.sentAt {
			continue
		}
		last := r.health.lastSilence.Load()
		if now-time.Duration(last) >= suspiciousSilence && r.health.lastSilence.CompareAndSwap(last, int64(now)) {
			r.recordFailure(s, ErrSilent)
		}
		return
	}
}

// ReportFailure hears why the request in the slot came to nothing after its answer had begun to come. What
// is not the replica's fault is ignored, so whoever blames need not tell.
func (s *Slot) ReportFailure(err error) { s.replica.recordFailure(s, err) }
