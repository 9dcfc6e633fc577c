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
// given up for its silence, an answer that is not HTTP, and a 502, 503 or 504 that is no refusal.
//
// A good answer clears the count. All else says nothing: 4xx and 500, which requests bring about
// themselves (a prompt that is too long); refusals; an old connection that broke; whatever ends
// because the client went away; and ErrExhausted, which is this process's own fault.

// failed hears why a request, or its reservation, came to nothing.
func (r *Replica) failed(s *Slot, err error) {
	switch {
	case errors.Is(err, ErrExhausted):
		r.exhausted(err)
	case errors.Is(err, ErrNoConnection), errors.Is(err, errUnclear):
		if r.setAside(err) || s.trial.Load() {
			r.count(s, err)
		}
	case errors.Is(err, ErrDraining):
		r.setAside(err)
	case errors.Is(err, ErrStale):
	case errors.Is(err, ErrBroken), errors.Is(err, ErrTimeout), errors.Is(err, ErrNotHTTP), errors.Is(err, ErrGateway):
		r.count(s, err)
	}
}

// exhausted reports that this process could not connect for want of its own resources. Nothing is
// learned about the replica.
func (r *Replica) exhausted(err error) {
	if r.events.Exhausted != nil {
		r.events.Exhausted(err)
	}
}

// count counts a failure against the replica.
func (r *Replica) count(s *Slot, err error) {
	ejected := r.circuit.fail(s.trial.Swap(false), err)
	if ejected == 0 {
		return
	}
	// Who waits can use the replica again when its time is over. Being late, or after the replica
	// has gone, does no harm.
	time.AfterFunc(ejected, r.health.tell)
	r.health.tell()
}

// succeeded hears that an answer has come which shows that the replica works.
func (r *Replica) succeeded(s *Slot) {
	if r.circuit.succeed(s.trial.Swap(false)) {
		r.comeBack()
		r.health.tell()
	}
}

// unsettled ends a trial without a verdict. In the background, because slots end under the locks of
// whoever is told.
func (r *Replica) unsettled() {
	r.circuit.leave()
	r.background.Go(r.health.tell)
}

// listen has the first byte of a good answer heard, where that matters.
func (r *Replica) listen(s *Slot, resp *http.Response) {
	if resp.StatusCode < http.StatusBadRequest && r.circuit.word.Load() != 0 {
		resp.Body = &firstByte{ReadCloser: resp.Body, replica: r, slot: s}
	}
}

// firstByte is the body of an answer whose first byte is waited for. Its end without any says
// nothing: a stream may end so because its process died.
type firstByte struct {
	io.ReadCloser
	replica *Replica
	slot    *Slot
	heard   bool
}

func (b *firstByte) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if !b.heard && n > 0 {
		b.heard = true
		b.replica.succeeded(b.slot)
	}
	return n, err
}

// Blame hears why the request in the slot came to nothing after its answer had begun to come. What
// is not the replica's fault is ignored, so whoever blames need not tell.
func (s *Slot) Blame(err error) { s.replica.failed(s, err) }
