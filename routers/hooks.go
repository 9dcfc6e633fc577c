package routers

// Hooks are optional functions that hear of a router's decisions, each called
// on the request's own goroutine. They must not block.
type Hooks struct {
	// Decided hears of every slot that was got, before anything is sent.
	Decided func(Decision)
	// Rejected hears that a replica with room did not take the request.
	Rejected func(p *Payload, replica string, err error)
	// Routed hears that the request is being dispatched to the replica.
	// What it returns, unless nil, is called exactly once, at the end.
	Routed func(p *Payload, replica string) (completed func(Outcome))
	// Released hears how a selection ended, dispatched or not, exactly once.
	Released func(p *Payload, replica string, o Outcome)
	// AgentWaitEnded hears, on a goroutine of its own, how a place in an agent's line ended: with a slot that
	// somebody wants, with one that nobody wants any more, or with an error.
	AgentWaitEnded func(replica string, wanted bool, err error)
}

// Outcome is how a selection ended.
type Outcome struct {
	Dispatched bool  // it was sent, or its sending was tried
	Answered   bool  // the head of an answer came
	Err        error // why it failed, where it did
}
