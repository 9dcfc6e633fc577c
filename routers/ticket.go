package routers

import (
	"context"
	"errors"

	"berth/llmserver"
)

// Ticket is a position in the wait queue, held by a caller that runs in virtual time and must not
// block. A Ticket belongs to one goroutine. There is no way to give a ticket back: the caller polls
// until there is a result, or closes the router.
type Ticket struct {
	selector *selector
	waiter   *waiter
}

// Try is Choose without blocking. The result is a selection, a ticket for the request's position in
// the queue, or an error. Limits.QueueTimeout does not apply, since the queue has no clock. Policy,
// reservation and queue are those of Choose; only the blocking goroutine is missing, so decisions
// in virtual time equal those of a serving router.
func (r *Router) Try(ctx context.Context, p *Payload, exclude ...*llmserver.Replica) (*Selection, *Ticket, error) {
	s := r.newSelector(p, exclude)
	sel, err := s.selectNow(ctx)
	if !errors.Is(err, llmserver.ErrFull) {
		s.recycle()
		return sel, nil, err
	}
	w, err := s.enqueue(ctx)
	if err != nil {
		return nil, nil, err
	}
	return nil, &Ticket{s, w}, nil
}

// Poll returns the result of the wait: a selection, an error, or neither while the request waits.
// Poll does not block for a slot. A slot is handed over within the freeing call (Release, Update,
// Refresh, Try), so the result changes only in such calls. After a result the ticket is spent.
//
// The queue sends the handover under the mutex, into a channel of capacity 1, so a Poll after such
// a call receives the handover. A slot rejected by its replica makes the request queue again, at
// the old position.
func (t *Ticket) Poll(ctx context.Context) (*Selection, error) {
	for {
		select {
		case h := <-t.waiter.done:
			if h.err != nil {
				return nil, h.err
			}
			sel, err := t.selector.confirmOrReject(ctx, &Selection{slot: h.slot, rank: h.rank})
			if sel != nil || err != nil {
				return sel, err
			}
			if t.waiter, err = t.selector.enqueue(ctx); err != nil {
				return nil, err
			}
		default:
			return nil, nil
		}
	}
}
