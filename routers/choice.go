package routers

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
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
	waiter     *waiter         // its last place in line, nil if it had none
	try, list  func(Tier) bool // the methods walk and enlist, bound once for all uses of the choice
	walked
	listing
}

// walked is what a walk down the ranking has come to.
type walked struct {
	ctx   context.Context
	at    int                  // the rank of the tier
	full  bool                 // there are replicas to wait for
	asked []*llmserver.Replica // whose agents said that they are full
	found *Selection
	err   error // that ended it

	exhausted error // no connection could be made, for which no replica is to blame
}

// choices that found a slot at once are used again: most requests find one, and then a choice costs
// no memory of its own.
var choices = sync.Pool{New: func() any {
	c := new(choice)
	c.try, c.list = c.walk, c.enlist
	return c
}}

func (r *Router) choice(p *Payload, exclude []*llmserver.Replica) *choice {
	c := choices.Get().(*choice)
	c.router, c.payload, c.exclude = r, p, exclude
	c.rank(r.current.Load())
	return c
}

// done gives the choice back. Nobody may use it any more.
func (c *choice) done() {
	*c = choice{try: c.try, list: c.list}
	choices.Put(c)
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
	c.walked = walked{ctx: ctx}
	c.ranking(c.try)
	switch {
	case c.found != nil || c.err != nil:
		return c.found, c.err
	case c.exhausted != nil:
		return nil, c.exhausted
	case c.full:
		return nil, llmserver.ErrFull
	default:
		return c.anyone(ctx)
	}
}

// walk tries the replicas of a tier; false ends the walk.
func (c *choice) walk(tier Tier) bool {
	c.at++
	for {
		replica, full := c.lightest(tier)
		c.full = c.full || full
		if replica == nil {
			return true
		}
		sel := &Selection{rank: c.at}
		if replica.TryReserveInto(&sel.direct, c.payload.RequestID, tier.Limit) != nil {
			continue // another request was faster, and what it has taken is seen next time
		}
		sel.slot = &sel.direct
		err := c.confirm(c.ctx, sel)
		switch {
		case err == nil:
			c.found = sel
			return false
		case c.ctx.Err() != nil:
			c.err = context.Cause(c.ctx)
			return false
		case errors.Is(err, llmserver.ErrExhausted):
			c.exhausted = err // another replica may have a connection that is open already
		case errors.Is(err, llmserver.ErrFull):
			c.full, c.asked = true, append(c.asked, replica)
		}
	}
}

// anyone asks who is down or ejected, as there is nobody else to ask: what is known of them may have
// ceased to be true, and the answer is no worse than none. Those that can be reached come first.
func (c *choice) anyone(ctx context.Context) (*Selection, error) {
	g := c.router.current.Load()
	if g.closed {
		return nil, ErrClosed
	}
	left := slices.DeleteFunc(slices.Clone(g.eligible(c.payload)), func(m *llmserver.Replica) bool {
		return m.Available() || m.Draining() || slices.Contains(c.exclude, m)
	})
	slices.SortStableFunc(left, func(a, b *llmserver.Replica) int {
		if a.Up() != b.Up() {
			if a.Up() {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.WeightedLoad(), b.WeightedLoad())
	})
	rank := 1 // behind all that were ranked, and found wanting
	if len(left) > 0 && c.ranking != nil {
		for range c.ranking {
			rank++
		}
	}
	for _, m := range left {
		slot, err := m.ForceReserve(c.payload.RequestID)
		if err != nil {
			continue
		}
		sel := &Selection{slot: slot, rank: rank}
		switch err := c.confirm(ctx, sel); {
		case err == nil:
			return sel, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, llmserver.ErrExhausted):
			return nil, err
		}
	}
	return nil, g.unavailable(c.payload, c.exclude)
}

// lightest is the replica of the tier with the least burden among those with
// room that were not asked yet, and whether there are some without.
func (c *choice) lightest(tier Tier) (lightest *llmserver.Replica, full bool) {
	least := 0.0
	for _, r := range tier.Replicas {
		if slices.Contains(c.exclude, r) || slices.Contains(c.asked, r) {
			continue
		}
		if !r.HasRoom() || tier.Limit > 0 && r.Load() >= tier.Limit {
			full = true
			continue
		}
		if burden := r.WeightedLoad(); lightest == nil || burden < least {
			lightest, least = r, burden
		}
	}
	return lightest, full
}

// confirm has the backend agree to a slot that was claimed. If it does not, its unit is given to
// who waits for it, and the replica is not asked again for this request unless it is one that can
// be waited for.
func (c *choice) confirm(ctx context.Context, sel *Selection) error {
	replica := sel.Replica()
	if err := sel.slot.Confirm(ctx, 0); err != nil {
		if !errors.Is(err, llmserver.ErrFull) || !replica.CountsSlots() {
			c.exclude = append(slices.Clip(c.exclude), replica)
		}
		c.router.freed(replica)
		if rejected := c.router.hooks.Rejected; rejected != nil && ctx.Err() == nil {
			rejected(c.payload, replica.ID(), err)
		}
		return err
	}
	sel.router, sel.payload = c.router, c.payload
	c.router.ranks[min(sel.rank, len(c.router.ranks))-1].Add(1)
	c.tell(sel)
	return nil
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
		sel := &Selection{slot: h.slot, rank: h.rank}
		err = c.confirm(ctx, sel)
		switch {
		case err == nil:
			return sel, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, llmserver.ErrExhausted):
			return nil, err
		}
	}
}

// enqueue joins the line and tries once more for what may have come free
// before it was in line. All of it is one step: a request that finds a slot is
// not refused because the line is full.
func (c *choice) enqueue() (*waiter, error) {
	r := c.router
	w := &waiter{payload: c.payload, exclude: c.exclude, done: make(chan handover, 1)}
	ranked := w.rank(c.generation, c.ranking) // here, so as not to do it under the lock
	r.mu.Lock()
	defer r.mu.Unlock()
	if g := r.current.Load(); g != c.generation {
		c.rank(g)
		ranked = w.rank(g, c.ranking)
	}
	g := c.generation
	switch {
	case g.closed:
		return nil, ErrClosed
	case !ranked:
		return nil, g.unavailable(c.payload, c.exclude)
	}
	if _, learns := g.policy.(Learner); learns {
		w.ranked = nil // what it continues may be placed while it waits
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
		return nil, ErrQueueFull
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
			return handover{err: ErrQueueTimeout}
		}
		return <-w.done
	case <-ctx.Done():
		if !r.leave(w) {
			if h := <-w.done; h.slot != nil {
				r.release(h.slot)
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
