package routers

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"

	"berth/llmserver"
)

// selector is one call of Choose or Try in progress. A selector belongs to the request's goroutine,
// takes the router's mutex only in enqueue and when a refused slot is passed on, and holds at most
// one slot at any time: the next replica is tried only after the slot on the previous one was
// refused and is done.
type selector struct {
	router  *Router
	payload *Payload
	exclude []*llmserver.Replica // excluded by the caller, or tried without success

	generation *generation
	ranking    iter.Seq[Tier]
	waiter     *waiter         // of the last wait, nil if there was none
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
	refused   []*llmserver.Replica // full according to their agents
	found     *Selection
	err       error // the end of the pass
	exhausted error // this process could not connect, which is no replica's fault
}

// selectors holds the selectors of requests served without waiting. Most are, and then selecting
// allocates only the Selection. A selector that has waited is not returned, since its waiter may
// still be read under Router.mu.
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

// recycle returns the selector to the pool. The selector must not be used afterwards.
func (s *selector) recycle() {
	*s = selector{try: s.try, collect: s.collect}
	selectors.Put(s)
}

// useGeneration ranks by g from now on. The policy is asked once for each generation, so a request
// moves a round robin by one.
func (s *selector) useGeneration(g *generation) {
	s.generation = g
	if g.policy != nil && !g.closed {
		s.ranking = g.rank(s.payload)
	}
}

// selectNow reserves the first slot in ranking order, without waiting for one. llmserver.ErrFull
// means replicas to wait for, present or to come, or other requests already waiting: a free slot is
// theirs first, and enqueue finds the slots of no use to them.
//
// The length is read without the mutex, so a request queueing at this moment may be overtaken by
// this one, but is not forgotten: every queued request tries for a slot once more, and the slot
// taken here is handed over on release.
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
	case s.full || s.generation.awaitsMembers(s.payload):
		return nil, llmserver.ErrFull
	default:
		return s.lastResort(ctx)
	}
}

// tryTier tries the replicas of a tier, the least loaded first. False ends the pass.
//
// Checking for room and reserving are two steps, of which only the second, a compare-and-swap of
// the gate, decides: between the two another request may take the slot. The loop then looks again.
// The loop ends, since before every further turn another request has taken a slot, which fills the
// replica sooner or later, or the replica was excluded or refused and is not looked at again.
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

// leastLoaded returns the replica of the tier with the least load among the untried ones with room,
// and whether some have no room. Reserved slots count as load, so that simultaneous arrivals see
// each other. Excluded replicas are neither chosen nor waited for; those refused by their agents
// are only waited for.
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

// confirmSlot asks the backend to confirm a reserved slot. After an error the slot is free again
// and was offered to the queue, and the replica is excluded for this request, unless merely full
// according to its agent: full replicas can be waited for. confirmSlot may block for a round trip
// to an agent.
func (s *selector) confirmSlot(ctx context.Context, sel *Selection) error {
	replica := sel.Replica()
	if err := sel.slot.Confirm(ctx, 0); err != nil {
		if !errors.Is(err, llmserver.ErrFull) || !replica.CountsSlots() {
			s.exclude = append(slices.Clip(s.exclude), replica) // Clip: append must not write to the caller's slice
		}
		s.router.onFreed(replica)
		if rejected := s.router.hooks.Rejected; rejected != nil && ctx.Err() == nil {
			rejected(s.payload, replica.ID(), err)
		}
		return err
	}
	sel.router, sel.payload = s.router, s.payload
	s.router.ranks[min(sel.rank, len(s.router.ranks))-1].Add(1)
	s.notifyDecided(sel)
	return nil
}

// confirmOrReject is confirmSlot for callers that can go on with another slot: both results are nil
// if the replica rejects this one. An error is final for the request.
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

// notifyDecided calls the policy, if a Learner, and the Decided hook, with no lock held. A panic of
// either releases the slot, since the caller has no selection yet to release. Release then reports
// an outcome without dispatch, and the policy settles its record.
func (s *selector) notifyDecided(sel *Selection) {
	learner, learns := s.router.Policy().(Learner) // perhaps newer than the ranking policy
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
