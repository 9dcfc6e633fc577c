package routers

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"berth/llmserver"
)

// choice is one call of Choose under way.
type choice struct {
	router  *Router
	payload *Payload
	exclude []*llmserver.Replica // not to be asked, or asked in vain

	generation *generation
	ranking    iter.Seq[Tier]
	waiter     *waiter // its last place in line, nil if it had none
}

// rank goes by g from now on. The policy is asked once a generation, so that
// one request moves a round robin by one.
func (c *choice) rank(g *generation) {
	c.generation = g
	if g.policy != nil && !g.closed {
		c.ranking = g.rank(c.payload)
	}
}

// direct walks down the ranking and reserves the first slot that is to be
// had. llmserver.ErrFull says that there are replicas to wait for.
func (c *choice) direct(ctx context.Context) (*Selection, error) {
	if c.generation.closed {
		return nil, ErrClosed
	}
	full, rank := false, 0
	var asked []*llmserver.Replica // whose agents said that they are full
	for tier := range c.ranking {
		rank++
		for {
			replica, more := c.lightest(tier, asked)
			full = full || more
			if replica == nil {
				break
			}
			slot, err := replica.Claim(c.payload.RequestID, tier.Limit)
			if err != nil {
				continue // another request was faster
			}
			sel, err := c.confirm(ctx, slot, rank)
			switch {
			case err == nil:
				return sel, nil
			case ctx.Err() != nil:
				return nil, context.Cause(ctx)
			case errors.Is(err, llmserver.ErrFull):
				full, asked = true, append(asked, replica)
			}
		}
	}
	if full {
		return nil, llmserver.ErrFull
	}
	return nil, c.generation.unavailable(c.payload, c.exclude)
}

// lightest is the replica of the tier with the least load among those with
// room that were not asked yet, and whether there are some without.
func (c *choice) lightest(tier Tier, asked []*llmserver.Replica) (lightest *llmserver.Replica, full bool) {
	least := 0
	for _, r := range tier.Replicas {
		if slices.Contains(c.exclude, r) || slices.Contains(asked, r) {
			continue
		}
		load := r.Load()
		if !r.HasRoom() || tier.Limit > 0 && load >= tier.Limit {
			full = true
			continue
		}
		if lightest == nil || load < least {
			lightest, least = r, load
		}
	}
	return lightest, full
}

// confirm has the backend agree to a slot that was claimed. If it does not, its unit is given to
// who waits for it, and the replica is not asked again for this request unless it is one that can
// be waited for. rank is that of the tier which the slot was taken from.
func (c *choice) confirm(ctx context.Context, slot *llmserver.Slot, rank int) (*Selection, error) {
	replica := slot.Replica()
	if err := slot.Confirm(ctx, 0); err != nil {
		if !errors.Is(err, llmserver.ErrFull) || !replica.CountsSlots() {
			c.exclude = append(slices.Clip(c.exclude), replica)
		}
		c.router.freed(replica)
		if rejected := c.router.hooks.Rejected; rejected != nil && ctx.Err() == nil {
			rejected(c.payload, replica.ID(), err)
		}
		return nil, err
	}
	sel := &Selection{router: c.router, payload: c.payload, slot: slot, rank: rank}
	c.router.ranks[min(rank, len(c.router.ranks))-1].Add(1)
	c.tell(sel)
	return sel, nil
}

// tell has those who learn from a selection, or look on, hear of it.
func (c *choice) tell(sel *Selection) {
	learner, learns := c.router.Policy().(Learner) // perhaps a newer one than ranked it
	decided := c.router.hooks.Decided
	if !learns && decided == nil {
		return
	}
	told := false
	defer func() {
		if !told { // one of them panicked
			sel.Release()
		}
	}()
	if learns {
		sel.matched, sel.settled = learner.Reserved(c.payload, sel.Replica())
	}
	if decided != nil {
		decided(Decision{c.payload, sel.Replica(), sel.rank, sel.matched, c})
	}
	told = true
}

// wait lines up and returns when a slot was handed over and confirmed, or
// when the wait is over.
func (c *choice) wait(ctx context.Context) (*Selection, error) {
	began := time.Now()
	// A context and not a timer: its end is seen however often the request lines up again.
	over, stop := context.WithTimeout(context.Background(), c.generation.limits.QueueTimeout-c.payload.Waited)
	defer stop()
	for {
		w, err := c.enqueue()
		if err != nil {
			return nil, err
		}
		h := c.router.await(ctx, w, over.Done())
		now := time.Now()
		c.payload.Waited, began = c.payload.Waited+now.Sub(began), now
		if h.err != nil {
			return nil, h.err
		}
		sel, err := c.confirm(ctx, h.slot, h.rank)
		switch {
		case err == nil:
			return sel, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
	}
}

// enqueue joins the line and tries once more for what may have come free
// before it was in line. All of it is one step: a request that finds a slot is
// not refused because the line is full.
func (c *choice) enqueue() (*waiter, error) {
	r := c.router
	w := &waiter{payload: c.payload, exclude: c.exclude, done: make(chan handover, 1)}
	w.rank(c.generation, c.ranking) // here, so as not to do it under the lock
	r.mu.Lock()
	defer r.mu.Unlock()
	if g := r.current.Load(); g != c.generation {
		c.rank(g)
		w.rank(g, c.ranking)
	}
	g := c.generation
	switch {
	case g.closed:
		return nil, ErrClosed
	case w.ranked == 0:
		return nil, g.unavailable(c.payload, c.exclude)
	}
	c.waiter = w
	newcomer := c.payload.place == 0
	r.line.join(w)
	r.waiting.Add(1)
	r.lookAtRate()
	for !w.handed {
		i := w.best(g)
		if i < 0 {
			break
		}
		r.offer(g, i) // if another request was faster, there may be room elsewhere
	}
	if newcomer && !w.handed && g.limits.MaxQueued >= 0 && r.line.length > g.limits.MaxQueued {
		r.line.leave(w)
		r.left()
		c.payload.place = 0 // it has none in a line that it was not let into
		return nil, ErrLineFull
	}
	if !w.handed {
		r.seekFor(g, w)
	}
	return w, nil
}

// await waits until w is handed something, the time is up or the client has gone. A slot that comes
// at the same moment is used if the time is up, and passed on if the client has gone.
func (r *Router) await(ctx context.Context, w *waiter, over <-chan struct{}) handover {
	select {
	case h := <-w.done:
		return h
	case <-over:
		if r.leave(w) {
			return handover{err: ErrWaitOver}
		}
		return <-w.done
	case <-ctx.Done():
		if !r.leave(w) {
			if h := <-w.done; h.slot != nil {
				r.passOn(h.slot)
			}
		}
		return handover{err: context.Cause(ctx)}
	}
}

// leave takes w out of the line; false if it was handed something before.
func (r *Router) leave(w *waiter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.line.leave(w) {
		return false
	}
	r.left()
	return true
}
