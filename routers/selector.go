package routers

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"

	"berth/llmserver"
)

// selector is one call of Choose or Try in progress. It belongs to the request's goroutine and takes no
// lock except in enqueue. It holds at most one slot at any time: the next replica is tried only after
// the slot on the one before was refused and is done.
type selector struct {
	router  *Router
	payload *Payload
	exclude []*llmserver.Replica // excluded by the caller, or tried without success

	generation *generation
	ranking    iter.Seq[Tier]
	waiter     *waiter         // of its last wait, nil if it has not waited
	try        func(Tier) bool // the method tryTier, bound once for all uses of the selector
	collect    func(Tier) bool // the method collectTier
	tryState
	explainState
}

// tryState is the state of one pass over the ranking.
type tryState struct {
	ctx       context.Context
	tier      int                  // rank of the current tier
	full      bool                 // there are replicas to wait for
	refused   []*llmserver.Replica // full by the word of their agents
	found     *Selection
	err       error // that ended the pass
	exhausted error // this process could not connect, which is no replica's fault
}

// selectors that found a slot without waiting are reused: most requests find one, and then selecting
// allocates only the Selection. One that has waited is not returned, since its waiter may still be
// read under Router.mu.
var selectors = sync.Pool{New: func() any {
	s := new(selector)
	s.try, s.collect = s.tryTier, s.collectTier
	return s
}}

func (r *Router) newSelector(p *Payload, exclude []*llmserver.Replica) *selector {
	s := selectors.Get().(*selector)
	s.router, s.payload, s.exclude = r, p, exclude
	s.useGeneration(r.current.Load())
	return s
}

// recycle returns the selector to the pool. It must not be used afterwards.
func (s *selector) recycle() {
	*s = selector{try: s.try, collect: s.collect}
	selectors.Put(s)
}

// useGeneration ranks by g from now on. The policy is asked once for each generation, so that a
// request moves a round robin by one.
func (s *selector) useGeneration(g *generation) {
	s.generation = g
	if g.policy != nil && !g.closed {
		s.ranking = g.rank(s.payload)
	}
}

// selectNow reserves the first slot in ranking order, without waiting for one. llmserver.ErrFull means
// that there are replicas to wait for, or that other requests wait already: a free slot is theirs
// first, and enqueue finds what they cannot use.
//
// The length is read without the mutex, so a request that queues at this moment may be overtaken by
// this one. It is not forgotten: it tries for a slot itself once it is in the queue, and the slot that
// this request takes is handed over when it is released.
func (s *selector) selectNow(ctx context.Context) (*Selection, error) {
	if s.router.queue.length.Load() > 0 {
		return nil, llmserver.ErrFull
	}
	if s.generation.closed {
		return nil, ErrClosed
	}
	s.tryState = tryState{ctx: ctx}
	s.ranking(s.try)
	switch {
	case s.found != nil || s.err != nil:
		return s.found, s.err
	case s.exhausted != nil:
		return nil, s.exhausted
	case s.full:
		return nil, llmserver.ErrFull
	default:
		return s.lastResort(ctx)
	}
}

// tryTier tries the replicas of a tier, the least loaded first. False ends the pass.
//
// Checking for room and reserving are two steps, of which only the second, a compare-and-swap of the
// gate, decides: between the two another request may take the slot. The loop then looks again. It ends,
// since every further turn means that another request has taken a slot, which makes the replica full,
// or that this replica is excluded or refused and is not looked at again.
func (s *selector) tryTier(tier Tier) bool {
	s.tier++
	for {
		replica, full := s.leastLoaded(tier)
		s.full = s.full || full
		if replica == nil {
			return true
		}
		sel := &Selection{rank: s.tier}
		if replica.TryReserveInto(&sel.ownSlot, s.payload.RequestID, tier.Limit) != nil {
			continue // another request was faster; leastLoaded sees its load now
		}
		sel.slot = &sel.ownSlot
		err := s.confirmSlot(s.ctx, sel)
		switch {
		case err == nil:
			s.found = sel
			return false
		case s.ctx.Err() != nil:
			s.err = context.Cause(s.ctx)
			return false
		case errors.Is(err, llmserver.ErrExhausted):
			s.exhausted = err // another replica may have an idle connection
		case errors.Is(err, llmserver.ErrFull):
			s.full, s.refused = true, append(s.refused, replica)
		}
	}
}

// leastLoaded returns the replica of the tier with the least load among those with room that were not
// tried yet, and whether some have no room. Reserved slots count as load, so that simultaneous arrivals
// see each other. Excluded replicas are neither chosen nor waited for; those that refused by the word
// of their agents are only waited for.
func (s *selector) leastLoaded(tier Tier) (best *llmserver.Replica, full bool) {
	least := 0.0
	for _, r := range tier.Replicas {
		if slices.Contains(s.exclude, r) || slices.Contains(s.refused, r) {
			continue
		}
		if !r.HasRoom() || tier.Limit > 0 && r.Load() >= tier.Limit {
			full = true
			continue
		}
		if load := r.WeightedLoad(); best == nil || load < least {
			best, least = r, load
		}
	}
	return best, full
}

// confirmSlot has the backend agree to a reserved slot. If it does not, the slot is free again and is
// offered to the queue, and the replica is excluded for this request, unless it is merely full by the
// word of its agent: then it can be waited for. It may block for a round trip to an agent.
func (s *selector) confirmSlot(ctx context.Context, sel *Selection) error {
	replica := sel.Replica()
	if err := sel.slot.Confirm(ctx, 0); err != nil {
		if !errors.Is(err, llmserver.ErrFull) || !replica.CountsSlots() {
			s.exclude = append(slices.Clip(s.exclude), replica) // Clip: the caller's slice is not written to
		}
		s.router.onFreed(replica)
		if rejected := s.router.hooks.Rejected; rejected != nil && ctx.Err() == nil {
			rejected(s.payload, replica.ID(), err)
		}
		return err
	}
	sel.router, sel.payload = s.router, s.payload
	s.router.ranks[min(sel.rank, len(s.router.ranks))-1].Add(1)
	s.notify(sel)
	return nil
}

// confirmOrReject is confirmSlot for callers that go on with another slot if the replica rejects this
// one: then it returns nil and nil. An error is final for the request.
func (s *selector) confirmOrReject(ctx context.Context, sel *Selection) (*Selection, error) {
	switch err := s.confirmSlot(ctx, sel); {
	case err == nil:
		return sel, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, llmserver.ErrExhausted):
		return nil, err
	}
	return nil, nil
}

// notify calls the policy, if it learns, and the Decided hook, with no lock held. The slot is released
// if one of them panics: the caller has no selection yet that it could release. Release then reports an
// outcome without dispatch, and settles what the policy has learned.
func (s *selector) notify(sel *Selection) {
	learner, learns := s.router.Policy().(Learner) // perhaps newer than the policy that ranked
	decided := s.router.hooks.Decided
	if !learns && decided == nil {
		return
	}
	panicked := true
	defer func() {
		if panicked {
			sel.Release()
		}
	}()
	if learns {
		sel.matched, sel.settled = learner.Reserved(s.payload, sel.Replica())
	}
	if decided != nil {
		decided(Decision{s.payload, sel.Replica(), sel.rank, sel.matched, s})
	}
	panicked = false
}
