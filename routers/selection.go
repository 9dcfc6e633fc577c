package routers

import (
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
	ownSlot   llmserver.Slot // the memory of slot, unless handed over from another request
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
	s.outcome.Dispatched = true
	if routed := s.router.hooks.Routed; routed != nil {
		s.completed = routed(s.payload, s.Replica().ID())
	}
	resp, err := s.Replica().Do(req, s.slot)
	if err != nil {
		s.outcome.Err = err
		if req.Context().Err() != nil {
			s.reportSilence()
		}
		return nil, err
	}
	s.resp, s.outcome.Answered, s.outcome.Status = resp, true, resp.StatusCode
	return resp, nil
}

// Fail records the reason why the response could not be delivered, for the outcome. Errors that
// count against a replica (llmserver.ErrBroken before the first byte, ErrGateway) are reported
// there.
func (s *Selection) Fail(err error) {
	s.outcome.Err = err
	s.slot.ReportFailure(err)
	if s.resp != nil {
		s.reportSilence()
	}
}

// reportSilence reports a stream that ended early, which counts against the replica if silent while
// other members responded.
func (s *Selection) reportSilence() {
	if s.payload.Stream {
		s.outcome.Silent = s.slot.Abandoned(s.router.Members()) || s.outcome.Silent
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
