package routers

import "time"

// Hooks are optional callbacks for metrics and logs. Except for AgentWaitEnded each is called on
// the goroutine of its request, without a lock of the router. They must not block.
type Hooks struct {
	// Decided is called for every confirmed slot, before anything is sent.
	Decided func(Decision)
	// Rejected is called when a replica with room did not confirm a slot, unless the request had
	// ended by then.
	Rejected func(p *Payload, replica string, err error)
	// Routed is called when the request is dispatched. Its result, unless nil, is called exactly
	// once, when the selection is released.
	Routed func(p *Payload, replica string) (completed func(Outcome))
	// Released is called exactly once for each selection, dispatched or not.
	Released func(p *Payload, replica string, o Outcome)
	// AgentWaitEnded is called when a wait in an agent's queue has ended, on the goroutine of that
	// wait: with a slot for a waiting request, with a slot no longer wanted, or with an error.
	AgentWaitEnded func(replica string, wanted bool, err error)
	// Overload is called when an overload has begun or ended, on the goroutine of the request by
	// which that was noticed.
	Overload func(overloaded bool)
	// Now, unless nil, is called for the time in place of time.Now, by callers that run in virtual
	// time. Router.mu may be held.
	Now func() time.Time
}

// Outcome is the end of a selection.
type Outcome struct {
	Dispatched bool  // the request was sent, or an attempt was made
	Served     bool  // a response header without an error status was received, and the replica has not failed since
	Status     int   // of the response header; 0 if none was received
	Silent     bool  // the replica was silent while others responded: see llmserver.ErrSilent
	Err        error // the failure, nil if there was none
}
