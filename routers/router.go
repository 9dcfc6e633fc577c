package routers

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"berth/llmserver"
)

// Limits bound the waiting line.
type Limits struct {
	MaxQueued    int           // requests in line at once; negative: no bound
	QueueTimeout time.Duration // how long each may wait; above zero
}

// Router chooses among the replicas of one model. It is the only one to take
// slots on them.
type Router struct {
	hooks   Hooks
	current atomic.Pointer[generation]
	waiting atomic.Int64 // the line's length, for those who do not hold mu

	freedSlots atomic.Uint64    // slots given back so far, for the drain rate
	ranks      [4]atomic.Uint64 // selections by the rank of their replica, the last for all further ones

	changes atomic.Int32 // of replicas' states that Refresh has yet to look at

	mu      sync.Mutex // guards all below, and stores to current
	line    line
	rate    drainRate
	seeking map[*llmserver.Replica]context.CancelFunc
	seekers sync.WaitGroup
}

// generation is what a router goes by until something changes; it is
// immutable. A change of what is available makes a new one with the same policy, so
// that a ranking is known to be outdated by the generation that it was made by.
type generation struct {
	members []*llmserver.Replica
	index   map[*llmserver.Replica]int
	staying []*llmserver.Replica // the members that are not draining: available, or merely down or ejected
	policy  Policy
	limits  Limits
	closed  bool
}

// New makes a router over members.
func New(members []*llmserver.Replica, build Builder, limits Limits, hooks Hooks) *Router {
	r := &Router{hooks: hooks, seeking: make(map[*llmserver.Replica]context.CancelFunc)}
	r.current.Store(&generation{})
	r.Update(members, build, limits)
	return r
}

// Update makes the router go by these members, policy and limits. Waiting
// requests keep their time of arrival and are ranked anew when their turn is near. One call at a
// time.
func (r *Router) Update(members []*llmserver.Replica, build Builder, limits Limits) {
	g := &generation{
		members: slices.Clone(members),
		index:   make(map[*llmserver.Replica]int, len(members)),
		limits:  limits,
	}
	for i, m := range g.members {
		g.index[m] = i
	}
	g.policy = build(g.members, r.current.Load().policy)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begin(g)
}

// Refresh gives out free slots and tells requests that cannot be served any more. It is to be
// called when a replica becomes available or ceases to be, or its limit changes; membership and
// policy stay. Calls at the same time are one: a call that finds another at work returns at once,
// and that one looks again before it returns.
func (r *Router) Refresh() {
	if r.changes.Add(1) > 1 {
		return
	}
	whole := false
	defer func() {
		if !whole {
			r.changes.Store(0) // after a panic, too, the next change is to be looked at
		}
	}()
	for seen := int32(0); !r.changes.CompareAndSwap(seen, 0); {
		seen = r.changes.Load()
		r.refresh()
	}
	whole = true
}

func (r *Router) refresh() {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := *r.current.Load()
	r.begin(&next)
}

// Close ends the router: who waits and who comes gets ErrClosed; requests
// under way are not touched.
func (r *Router) Close() {
	r.mu.Lock()
	g := *r.current.Load()
	g.closed = true
	r.current.Store(&g)
	for r.line.head != nil {
		r.hand(r.line.head, handover{err: ErrClosed})
	}
	r.mu.Unlock()
	r.seekers.Wait()
}

// QueueLength is how many requests are in line.
func (r *Router) QueueLength() int { return int(r.waiting.Load()) }

// Handoffs counts the slots handed to waiting requests so far, and how often an older
// one that could have used such a slot was passed over.
func (r *Router) Handoffs() (slots, passedOver uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.line.handed, r.line.passed
}

// Ranks counts the selections so far by the rank of their replica: 1, 2, 3, and more.
func (r *Router) Ranks() (counts [4]uint64) {
	for i := range r.ranks {
		counts[i] = r.ranks[i].Load()
	}
	return counts
}

// Members are the replicas that the router goes by, not to be changed.
func (r *Router) Members() []*llmserver.Replica { return r.current.Load().members }

// Policy is the policy that the router goes by.
func (r *Router) Policy() Policy { return r.current.Load().policy }

// Choose picks a replica for p and reserves a slot on it, waiting in line for one if need be.
// Replicas in exclude are passed by. The caller must release the selection. Errors: ErrLineFull,
// ErrWaitOver, ErrClosed, an *UnavailableError, llmserver.ErrExhausted, or the cause of the end of
// ctx.
func (r *Router) Choose(ctx context.Context, p *Payload, exclude ...*llmserver.Replica) (*Selection, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	c := r.choice(p, exclude)
	if r.waiting.Load() == 0 {
		sel, err := c.direct(ctx)
		if !errors.Is(err, llmserver.ErrFull) {
			c.done()
			return sel, err
		}
	}
	sel, err := c.wait(ctx)
	if _, none := errors.AsType[*UnavailableError](err); none {
		return c.anyone(ctx)
	}
	return sel, err
}

// begin stores the next generation, ends the waits that nobody can serve any more and gives out
// what is free. Requests are ranked by it only as their turn comes near, see line.next: to rank the
// whole line here would hold the mutex for its length times the number of members. The mutex is held.
func (r *Router) begin(g *generation) {
	g.spare()
	g.staying = slices.DeleteFunc(slices.Clone(g.members), (*llmserver.Replica).Draining)
	r.current.Store(g)
	for m, stop := range r.seeking {
		if _, member := g.index[m]; !member {
			stop()
		}
	}
	for w := r.line.head; w != nil; {
		next := w.next
		if !g.mayServe(w.payload, w.exclude) {
			r.hand(w, handover{err: g.unavailable(w.payload, w.exclude)})
		}
		w = next
	}
	for i := range g.members {
		for r.line.head != nil && r.offer(g, i) {
		}
	}
}

// offer gives one free slot of the replica at index i to who wants it most; false if it has
// none or nobody wants it. Where an agent counts, it is asked, which takes its time. The mutex is held.
func (r *Router) offer(g *generation, i int) bool {
	m := g.members[i]
	if m.CountsSlots() {
		r.seek(g, i)
		return false
	}
	if !m.Available() || !m.HasRoom() {
		return false
	}
	w := r.line.next(g, i)
	if w == nil {
		return false
	}
	slot, err := m.TryReserve(w.payload.RequestID, 0)
	if err != nil {
		return false
	}
	r.give(i, w, slot)
	return true
}

// give hands w the slot on the replica at index i. The mutex is held.
func (r *Router) give(i int, w *waiter, slot *llmserver.Slot) {
	r.line.give(r.current.Load(), i, w, slot)
	r.left()
}

// hand ends a wait. The mutex is held.
func (r *Router) hand(w *waiter, h handover) {
	r.line.hand(w, h)
	r.left()
}

// left notes that the line has become shorter. The mutex is held.
func (r *Router) left() {
	if r.waiting.Add(-1) == 0 {
		r.stopSeeking()
		r.lookAtRate()
	}
}

// release ends a slot's use, or gives back one that was handed over and not used. While requests wait it is handed over without
// ever being free. Otherwise it is freed first and the line looked at again after that; who joins
// the line counts itself first and tries for a slot after that, so one of the two sees the other.
func (r *Router) release(s *llmserver.Slot) {
	r.freedSlots.Add(1)
	replica := s.Replica()
	if r.waiting.Load() > 0 && !replica.CountsSlots() && r.handOver(s) {
		return
	}
	s.Release()
	if !r.current.Load().chooses(replica) {
		replica.NotifyFreed() // another model's requests may wait for it by now
	}
	r.freed(replica)
}

// handOver reports whether a waiting request has got the slot.
func (r *Router) handOver(s *llmserver.Slot) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, w := r.wanting(s.Replica())
	if w == nil {
		return false
	}
	heir := s.HandOver(w.payload.RequestID)
	if heir == nil {
		return false
	}
	r.give(i, w, heir)
	return true
}

// freed gives out a slot that came free on a replica otherwise than by release.
func (r *Router) freed(replica *llmserver.Replica) {
	if r.waiting.Load() == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.current.Load()
	if i, member := g.index[replica]; member {
		r.offer(g, i)
	}
}

// wanting finds who is to get a slot of the replica, nil if nobody, and the
// replica's index, -1 if it is no member. The mutex is held.
func (r *Router) wanting(replica *llmserver.Replica) (i int, w *waiter) {
	g := r.current.Load()
	i, member := g.index[replica]
	switch {
	case !member:
		return -1, nil
	case !replica.Up(): // whether an ejected one lets somebody in is its circuit's business
		return i, nil
	}
	return i, r.line.next(g, i)
}

// chooses tells whether a replica is chosen from.
func (g *generation) chooses(r *llmserver.Replica) bool {
	_, member := g.index[r]
	return member && !g.closed
}

// spare has ejected replicas chosen all the same where they are more than half of all, or where
// nobody else is up. Who was ejected first stays out: it has the longest record, and is tried again first.
func (g *generation) spare() {
	type ejected struct {
		*llmserver.Replica
		since time.Duration
	}
	up, all := 0, []ejected(nil)
	for _, m := range g.members {
		if !m.Up() {
			continue
		}
		up++
		if since, open := m.Ejected(); open {
			all = append(all, ejected{m, since})
		}
	}
	slices.SortStableFunc(all, func(a, b ejected) int { return cmp.Compare(a.since, b.since) })
	out := min(len(g.members)/2, up-1)
	for i, e := range all {
		e.AllowEjected(i >= out)
	}
}

// mayServe reports whether there is a member that serves p now or may later: down or ejected, it may
// come back, and one failed probe must not cost a whole line.
func (g *generation) mayServe(p *Payload, tried []*llmserver.Replica) bool {
	if p.PinnedTo != nil {
		_, member := g.index[p.PinnedTo]
		return member && !p.PinnedTo.Draining() // one that was tried is ranked by nobody, so nobody waits for it
	}
	return slices.ContainsFunc(g.staying, func(m *llmserver.Replica) bool { return !slices.Contains(tried, m) })
}

// unavailable says why nobody can be asked to serve.
func (g *generation) unavailable(p *Payload, tried []*llmserver.Replica) error {
	members := g.eligible(p)
	e := &UnavailableError{Replicas: len(members)}
	for _, m := range members {
		switch {
		case !m.Available():
			e.Reasons = append(e.Reasons, "replica "+m.Label()+": "+m.DownReason())
		case slices.Contains(tried, m):
			e.Tried++
		}
	}
	return e
}
