package routers

import (
	"context"
	"errors"
	"net/http"

	"berth/llmserver"
)

// Selection is a replica with the slot held on it for one request.
//
//	            Dispatch               Release
//	reserved ──────────────▶ running ───────────▶ released
//	    └────────────────────────────────────────▶ released
//	             Release
//
// A Selection belongs to the request's goroutine; only Dispatch may be called concurrently, and the
// slot's compare-and-swap decides between the calls.
type Selection struct {
	router    *Router
	payload   *Payload
	slot      *llmserver.Slot
	ownSlot   llmserver.Slot  // the memory of slot, unless handed over from another request
	ctx       context.Context // of the request, once dispatched
	resp      *http.Response
	rank      int
	matched   int
	outcome   Outcome
	settled   func(Outcome) // from Learner.Reserved; may be nil
	completed func(Outcome) // from Hooks.Routed; nil until then
	released  bool
}

// Replica returns the chosen replica.
func (s *Selection) Replica() *llmserver.Replica { return s.slot.Replica() }

// Rank returns the rank of the replica's tier: 1 for the policy's first.
func (s *Selection) Rank() int { return s.rank }

// Matched returns the number of the payload's blocks believed by the policy to be cached on the
// replica, 0 for a policy without such an estimate.
func (s *Selection) Matched() int { return s.matched }

// Outcome returns the outcome so far: what Release will report.
func (s *Selection) Outcome() Outcome { return s.outcome }

// Dispatch sends the request into the slot and returns when the response header is received. The
// response body is closed at the latest by Release. A second call, also a concurrent one, fails
// with ErrDispatched before any I/O; llmserver.ErrGone means a replica removed from the set since
// the choice. All other errors are those of llmserver.Backend. The request must not have a GetBody,
// which would let the transport send twice; the URL needs only a path.
func (s *Selection) Dispatch(req *http.Request) (*http.Response, error) {
	switch err := s.slot.Start(); {
	case errors.Is(err, llmserver.ErrSpent):
		return nil, ErrDispatched // outcome belongs to the call that won
	case err != nil:
		s.outcome.Err = err
		return nil, err
	}
	s.outcome.Dispatched, s.ctx = true, req.Context()
	if routed := s.router.hooks.Routed; routed != nil {
		s.completed = routed(s.payload, s.Replica().ID())
	}
	s.slot.SetRequest(s.payload.Request, s.payload.Stream)
	resp, err := s.Replica().Do(req, s.slot)
	if err != nil {
		s.outcome.Err = err
		s.reportAbandoned()
		return nil, err
	}
	s.resp, s.outcome.Status = resp, resp.StatusCode
	s.outcome.Served = resp.StatusCode < http.StatusBadRequest
	return resp, nil
}

// OnSilence sets the function that ends the request if the replica is found to hang; see
// llmserver.Slot. It must be called before Dispatch.
func (s *Selection) OnSilence(abort func(error)) { s.slot.OnSilence(abort) }

// Fail records the reason why the response could not be delivered, for the outcome. Errors that may
// be the replica's fault are reported there: see llmserver.Slot.ReportFailure.
func (s *Selection) Fail(err error) {
	s.outcome.Err = err
	if llmserver.ReplicaFault(err) {
		s.outcome.Served = false
	}
	s.slot.ReportFailure(err)
	if s.resp != nil {
		s.reportAbandoned()
	}
}

// reportAbandoned reports a request that was abandoned.
func (s *Selection) reportAbandoned() {
	if s.abandoned() {
		s.reportSilence()
		s.router.onAbandoned(s.payload.Waited)
	}
}

// abandoned reports whether the client or a timeout has ended the request, and not the replica's
// silence.
func (s *Selection) abandoned() bool {
	return s.ctx.Err() != nil && !errors.Is(context.Cause(s.ctx), llmserver.ErrSilent)
}

// Blame counts the failure of a dispatched request against the replica even if an equal request has
// failed there before, since a sibling has served the request. Excuse takes the failure back, since
// a sibling has failed on the request, too. Both may be called after Release, by the goroutine of
// the request.
func (s *Selection) Blame() { s.slot.Blame(s.outcome.Err) }

// Excuse takes back a failure: see Blame.
func (s *Selection) Excuse() { s.slot.Excuse() }

// reportSilence reports a stream that ended early, which counts against the replica if silent while
// other members responded.
func (s *Selection) reportSilence() {
	if s.payload.Stream {
		s.outcome.Silent = s.slot.Abandoned() || s.outcome.Silent
	}
}

// Release ends the selection: the response body is closed, the slot freed or handed to a waiting
// request, and the outcome reported, once each. There is no result, so a deferred call cannot mask
// an error. A second call does nothing.
func (s *Selection) Release() {
	if s.released {
		return
	}
	s.released = true
	if s.resp != nil {
		s.resp.Body.Close() // first: while the body is open, the engine may still be at work
		s.slot.Complete()
	}
	s.router.releaseSlot(s.slot)
	if released := s.router.hooks.Released; released != nil {
		released(s.payload, s.Replica().ID(), s.outcome)
	}
	if s.settled != nil {
		s.settled(s.outcome)
	}
	if s.completed != nil {
		s.completed(s.outcome)
	}
}
