package routers

import (
	"context"
	"errors"

	"berth/llmserver"
)

// Ticket is a place in the waiting line, held by a caller that does not block
// because the time it lives in is its own. It belongs to one goroutine.
type Ticket struct {
	choice *choice
	waiter *waiter
}

// Try is Choose without the waiting: it returns a selection, or else a ticket for the place in line
// that the request has got. The line's timeout is the caller's business.
func (r *Router) Try(ctx context.Context, p *Payload, exclude ...*llmserver.Replica) (*Selection, *Ticket, error) {
	c := r.choice(p, exclude)
	if r.waiting.Load() == 0 {
		sel, err := c.direct(ctx)
		if !errors.Is(err, llmserver.ErrFull) {
			c.done()
			return sel, nil, err
		}
	}
	t := &Ticket{choice: c}
	if err := t.join(); err != nil {
		return nil, nil, err
	}
	return nil, t, nil
}

func (t *Ticket) join() (err error) {
	t.waiter, err = t.choice.enqueue()
	return err
}

// Poll returns what the wait has come to: a selection, an error, or neither
// while it goes on. A slot is handed over within the call that frees it (Release, Update,
// Refresh, Try), so there is nothing new to be had between such calls.
func (t *Ticket) Poll(ctx context.Context) (*Selection, error) {
	for {
		select {
		case h := <-t.waiter.done:
			if h.err != nil {
				return nil, h.err
			}
			sel := &Selection{slot: h.slot, rank: h.rank}
			err := t.choice.confirm(ctx, sel)
			if err == nil {
				return sel, nil
			}
			if ctx.Err() != nil {
				return nil, err
			}
			if err := t.join(); err != nil {
				return nil, err
			}
		default:
			return nil, nil
		}
	}
}
