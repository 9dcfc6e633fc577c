package llmserver

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"time"
)

// This file turns the outcomes of requests into the state of their replica.
//
// Down at once, until a probe succeeds: no connection, draining, a reservation with unknown
// outcome. Each time a replica goes down counts as one failure too, so a replica that passes only
// the probes is ejected in the end.
//
// A failure in the comparison with the siblings (see Cohort): a connection broken before or within
// a response, or timed out; an invalid HTTP response; a 5xx other than a refusal; a 404 for the
// served model; and silence while siblings respond.
//
// A success is a good response that is complete. Everything else is inconclusive: other 4xx, which
// a request causes itself; refusals; stale connections; requests ended by a client disconnect; and
// ErrExhausted, this process's own fault.

// silenceWindow is the time without a byte after which silence counts against a replica, and also
// the minimum time between two such failures: a client abandoning many requests at once shows one
// silence, not many.
const silenceWindow = 2 * time.Second

// replicaFaults are the errors of requests that count as failures of their replica. Whether the
// replica or the request is to blame is decided by comparison, not here.
var replicaFaults = []error{ErrBroken, ErrTimeout, ErrNotHTTP, ErrServerError, ErrEngineDead, ErrModelNotServed, ErrSilent}

// ReplicaFault reports whether err is the failure of a request that reached its replica and may be
// the replica's fault.
func ReplicaFault(err error) bool {
	return !errors.Is(err, ErrStale) &&
		slices.ContainsFunc(replicaFaults, func(fault error) bool { return errors.Is(err, fault) })
}

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
	case ReplicaFault(err):
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

// countFailure counts a failure against the replica, at most once per slot: as the outcome of a
// trial while the circuit is open, else in the comparison with the siblings.
func (r *Replica) countFailure(s *Slot, err error) {
	if s.failure != notFailed {
		return
	}
	s.failure = failed
	broke := s.firstByte.Load() == arrived
	failures, since, ok := r.outcomes.recordFailure(s.fingerprint())
	if !ok {
		s.failure = failedAgain
	}
	if until := r.circuit.failTrial(s.reservedAt, err, broke); until > 0 {
		r.notifyAt(until)
	} else if reason := r.cohort.Load().compare(r, failures, since, err); reason != nil {
		r.eject(reason, broke)
	}
}

// Blame counts the failure of the slot's request even if an equal request has failed on the replica
// before: a sibling has served the same request, so the request is not to blame. Blame is called at
// most once, by the goroutine of the request, after ReportFailure or a failed Replica.Do.
func (s *Slot) Blame(err error) {
	if s.failure != failedAgain {
		return
	}
	failures, since, _ := s.replica.outcomes.recordFailure(0)
	if reason := s.replica.cohort.Load().compare(s.replica, failures, since, err); reason != nil {
		s.replica.eject(reason, s.firstByte.Load() == arrived)
	}
}

// Excuse takes back the failure of the slot's request: a sibling has failed on the same request, so
// the request may be to blame. An ejection is not taken back; the next trial decides.
func (s *Slot) Excuse() {
	if s.failure == failed {
		s.failure = excused
		s.replica.outcomes.excuse()
	}
}

// eject opens the circuit.
func (r *Replica) eject(reason error, broke bool) {
	if until := r.circuit.open(reason, broke); until > 0 {
		r.notifyAt(until)
	}
}

// notifyAt notifies the observer of an open circuit, and once more when the open time is over,
// since a waiter may use the replica again then. A late notification, or one after the removal of
// the replica, is harmless.
func (r *Replica) notifyAt(until time.Duration) {
	time.AfterFunc(until, r.health.notifyObserver)
	r.health.notifyObserver()
}

// passCircuit reports whether the circuit admits a request. If the request is a trial, the observer
// is notified after trialInterval: without an outcome until then, the circuit admits another one.
func (r *Replica) passCircuit() bool {
	trial, ok := r.circuit.tryAdmit()
	if trial {
		time.AfterFunc(trialInterval, r.health.notifyObserver)
	}
	return ok
}

// observeBody wraps the response body, to count reads and to record a good response.
func (r *Replica) observeBody(s *Slot, resp *http.Response) {
	s.body = slotBody{ReadCloser: resp.Body, slot: s, good: resp.StatusCode < http.StatusBadRequest}
	resp.Body = &s.body
}

// A slotBody is the body of a response in a slot. One goroutine reads the body. An end without any
// byte is inconclusive: a stream ends in the same way if the engine's process dies.
type slotBody struct {
	io.ReadCloser
	slot  *Slot
	good  bool // the status is no error, and the end has not been read
	begun bool // some byte was read
}

func (b *slotBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.slot.replica.health.bodyReads.Add(1)
		if b.good && !b.begun {
			if !b.slot.firstByte.CompareAndSwap(awaited, arrived) {
				return 0, ErrSilent
			}
			b.begun = true
			b.slot.onFirstByte()
		}
	}
	b.slot.complete = b.slot.complete || err == io.EOF && b.begun
	return n, err
}

// onFirstByte records the first byte of a good response. That of a stream proves that the replica
// works; another response is judged as a whole.
func (s *Slot) onFirstByte() {
	r, now := s.replica, monotonic()
	r.health.lastResponse.Store(int64(now))
	if c := r.cohort.Load(); c != nil {
		if sentAt := time.Duration(s.sentAt.Load()); sentAt > 0 && s.stream {
			r.health.observeFirstByte(now-sentAt, now)
			r.health.observeMeanWait(now - sentAt)
		}
		c.sweep(now)
	}
	if s.stream {
		r.recordSuccess(s, false)
	}
}

// Complete records a success if a good response was read to its end, and no failure was reported
// since: a response may turn out as none only then. Complete is called by the goroutine of the
// request, once, when the response has been judged.
func (s *Slot) Complete() {
	if s.complete && s.failure == notFailed {
		s.replica.outcomes.recordSuccess()
		s.replica.recordSuccess(s, true)
	}
}

// recordSuccess closes the circuit if the request was a successful trial. The outcomes from before
// the ejection are forgotten, but not quite.
func (r *Replica) recordSuccess(s *Slot, complete bool) {
	if r.circuit.recordSuccess(s.reservedAt, complete) {
		r.outcomes.reset(probation)
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
func (s *Slot) Abandoned() bool {
	r, now, sentAt, c := s.replica, monotonic(), time.Duration(s.sentAt.Load()), s.replica.cohort.Load()
	if c == nil || sentAt == 0 || now-sentAt < silenceWindow || r.health.bodyReads.Load() != s.readsAtSend {
		return false
	}
	responded := func(other *Replica) bool {
		return other != r && time.Duration(other.health.lastResponse.Load()) > sentAt
	}
	if !slices.ContainsFunc(c.members, responded) {
		return false
	}
	// The compare-and-swap picks one of the requests reporting the same silence at once.
	last := r.health.lastSilence.Load()
	if now-time.Duration(last) < silenceWindow || !r.health.lastSilence.CompareAndSwap(last, int64(now)) {
		return false
	}
	r.handleFailure(s, ErrSilent)
	return true
}

// ReportFailure records why the request in the slot failed after its response had begun. Errors
// that are not the replica's fault are ignored, so callers may pass any error.
func (s *Slot) ReportFailure(err error) { s.replica.handleFailure(s, err) }
