package routers

import (
	"context"
	"errors"

	"berth/llmserver"
)

// Ticket is a position in the wait queue, held by a caller that must not block because it runs in
// virtual time. It belongs to one goroutine. There is no way to give it back: the caller polls until
// there is a result, or closes the router.
type Ticket struct {
	selector *selector
	waiter   *waiter
}

// Try is Choose without blocking: it returns a selection, or a ticket for the request's position in
// the queue, or an error. Limits.QueueTimeout does not apply, since the queue has no clock. Policy,
// reservation and queue are those of Choose; only the goroutine that would block is missing, so
// decisions in virtual time are those of a router that serves requests.
func (r *Router) Try(ctx context.Context, p *Payload, exclude ...*llmserver.Replica) (*Selection, *Ticket, error) {
	s := r.newSelector(p, exclude)
	sel, err := s.selectNow(ctx)
	if !errors.Is(err, llmserver.ErrFull) {
		s.recycle()
		return sel, nil, err
	}
	w, err := s.enqueue()
	if err != nil {
		return nil, nil, err
	}
	return nil, &Ticket{s, w}, nil
}

// Poll returns the result of the wait: a selection, an error, or neither while the request waits. It
// does not block for a slot. A slot is handed over within the call that frees it (Release, Update,
// Refresh, Try), so the result changes only in such calls. After a result the ticket is spent.
//
// The handover is received from a channel of capacity 1, into which the queue has put it under the
// mutex, so a Poll after such a call sees it. A slot that its replica rejects makes the request queue
// again, at its old position.
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
			if t.waiter, err = t.selector.enqueue(); err != nil {
				return nil, err
			}
		default:
			return nil, nil
		}
	}
}
