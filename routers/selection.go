package routers

import (
	"errors"
	"net/http"

	"berth/llmserver"
)

// Selection is a replica together with the slot held on it for one request.
// It belongs to that request's goroutine: dispatched at most once, released always.
type Selection struct {
	router    *Router
	payload   *Payload
	slot      *llmserver.Slot
	direct    llmserver.Slot // what slot points at, unless it was handed over in line
	resp      *http.Response
	rank      int
	matched   int
	outcome   Outcome
	settled   func(Outcome) // the policy's, nil if it does not learn
	completed func(Outcome) // the hook's, nil until routed
	released  bool
}

// Replica is the one chosen.
func (s *Selection) Replica() *llmserver.Replica { return s.slot.Replica() }

// Rank is that of the tier which the replica was taken from: 1 for the policy's first.
func (s *Selection) Rank() int { return s.rank }

// Matched is how many of the payload's blocks the replica was held to know
// already; 0 where the policy does not go by them.
func (s *Selection) Matched() int { return s.matched }

// Dispatch sends the request into the slot and returns when the head of the
// answer is there. The body of the answer is closed at the latest by Release.
// A second call, also one at the same time, fails with ErrDispatched before any I/O;
// llmserver.ErrGone says that the replica left in between. All other errors
// are those of llmserver.Backend.
func (s *Selection) Dispatch(req *http.Request) (*http.Response, error) {
	switch err := s.slot.Start(); {
	case errors.Is(err, llmserver.ErrSpent):
		return nil, ErrDispatched
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
			s.abandoned()
		}
		return nil, err
	}
	s.resp, s.outcome.Answered = resp, true
	return resp, nil
}

// Fail records why the answer could not be delivered, for those who hear the outcome. What
// llmserver counts against a replica (ErrBroken before its first byte, ErrGateway) is counted.
func (s *Selection) Fail(err error) {
	s.outcome.Err = err
	s.slot.ReportFailure(err)
	if s.resp != nil {
		s.abandoned()
	}
}

// abandoned has the silence of a replica counted, if that is what ended a stream.
func (s *Selection) abandoned() {
	if s.payload.Stream {
		s.slot.Abandoned(s.router.Members())
	}
}

// Release ends the selection: it closes the answer's body, gives the slot to
// who waits for it, and tells the outcome. A second call does nothing.
func (s *Selection) Release() {
	if s.released {
		return
	}
	s.released = true
	if s.resp != nil {
		s.resp.Body.Close()
	}
	s.router.release(s.slot)
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
