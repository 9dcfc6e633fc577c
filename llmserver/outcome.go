package llmserver

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// This file turns the outcomes of requests into the state of their replica.
//
// Down at once, until a probe succeeds: no connection, draining, a reservation with unknown
// outcome. Each time a replica goes down counts as one failure too, so a replica that passes only
// the probes is ejected in the end.
//
// Counted by the circuit, which ejects after maxFailures in a row: a connection broken before the
// first byte or timed out, an invalid HTTP response, a 502, 503 or 504 other than a refusal, and
// silence while siblings respond (see Abandoned).
//
// A good response resets the count. Everything else is inconclusive: 4xx and 500, which a request
// may cause itself (an overlong prompt); refusals; stale connections; requests ended by a client
// disconnect; and ErrExhausted, this process's own fault.

// silenceWindow is the time without a byte after which silence counts against a replica, and also
// the minimum time between two such failures: a client abandoning many requests at once shows one
// silence, not many.
const silenceWindow = 2 * time.Second

// handleFailure records why a request in s, or its reservation, failed. Errors that are not the
// replica's fault are ignored.
func (r *Replica) handleFailure(s *Slot, err error) {
	switch {
	case errors.Is(err, ErrExhausted):
		r.reportExhausted(err)
	case errors.Is(err, ErrNoConnection), errors.Is(err, errUnclear):
		// Many requests may meet the same outage. Only the one marking the replica down counts; in
		// an open circuit every one counts, as a possible trial.
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

// reportExhausted reports a lack of resources in this process for a connection. The event is no
// evidence about the replica.
func (r *Replica) reportExhausted(err error) {
	if r.events.Exhausted != nil {
		r.events.Exhausted(err)
	}
}

// countFailure counts a failure against the replica, at most once per slot. If the circuit opens,
// the observer is notified now and when the open time is over, since a waiter may use the replica
// again then. A late notification, or one after the removal of the replica, is harmless.
func (r *Replica) countFailure(s *Slot, err error) {
	if s.failureCounted {
		return
	}
	s.failureCounted = true
	if ejected := r.circuit.recordFailure(s.reservedAt, err); ejected > 0 {
		time.AfterFunc(ejected, r.health.notifyObserver)
		r.health.notifyObserver()
	}
}

// passCircuit reports whether the circuit admits a request. If the request is a trial, the observer
// is notified after trialTimeout: without an outcome until then, the circuit admits another one.
func (r *Replica) passCircuit() bool {
	trial, ok := r.circuit.tryAdmit()
	if trial {
		time.AfterFunc(trialTimeout, r.health.notifyObserver)
	}
	return ok
}

// observeBody wraps the response body, to count reads and to close the circuit at the first byte of
// a good response.
func (r *Replica) observeBody(s *Slot, resp *http.Response) {
	s.body = slotBody{ReadCloser: resp.Body, slot: s, pending: resp.StatusCode < http.StatusBadRequest}
	resp.Body = &s.body
}

// A slotBody is the body of a response in a slot. One goroutine reads the body. An end without any
// byte is inconclusive: a stream ends in the same way if the engine's process dies.
type slotBody struct {
	io.ReadCloser
	slot    *Slot
	pending bool // a good response of which no byte was read yet
}

func (b *slotBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.slot.replica.health.bodyReads.Add(1)
		if b.pending {
			b.pending = false
			b.slot.onFirstByte()
		}
	}
	return n, err
}

// onFirstByte records the first byte of a good response. The circuit closes if the request was
// admitted after the opening.
func (s *Slot) onFirstByte() {
	r := s.replica
	r.health.lastResponse.Store(int64(monotonic()))
	if r.circuit.recordSuccess(s.reservedAt) {
		r.markRecovered()
		r.health.notifyObserver()
	}
}

// Abandoned records the end of the slot's request by its client or by a timeout. The end counts as
// ErrSilent if the replica has sent no byte of any response body since the request was sent, for 2
// s or more, while one of the siblings began a response: the replica hangs, and clients leave
// before anything else fails. Response headers prove nothing, since engines send the header of a
// stream before they start to work.
//
// Abandoned is for streams only; other responses are silent until they are complete. It reports
// whether the end counted.
func (s *Slot) Abandoned(siblings []*Replica) bool {
	r, now := s.replica, monotonic()
	if s.sentAt == 0 || now-s.sentAt < silenceWindow || r.health.bodyReads.Load() != s.readsAtSend {
		return false
	}
	for _, other := range siblings {
		if other == r || time.Duration(other.health.lastResponse.Load()) <= s.sentAt {
			continue
		}
		// The compare-and-swap picks one of the requests reporting the same silence at once.
		last := r.health.lastSilence.Load()
		if now-time.Duration(last) >= silenceWindow && r.health.lastSilence.CompareAndSwap(last, int64(now)) {
			r.handleFailure(s, ErrSilent)
			return true
		}
		return false
	}
	return false
}

// ReportFailure records why the request in the slot failed after its response had begun. Errors
// that are not the replica's fault are ignored, so callers may pass any error.
func (s *Slot) ReportFailure(err error) { s.replica.handleFailure(s, err) }
