package routers

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"berth/llmserver"
)

// Limits bound the wait queue.
type Limits struct {
	MaxQueued    int           // requests in the queue at once; negative: no bound, not even during an overload
	QueueTimeout time.Duration // for all waits of one request together; above zero

	// AwaitMembers: members may appear at any time, so a request waits in the queue while there is
	// none, or only draining ones. Otherwise such a request fails at once.
	AwaitMembers bool
}

// Router chooses among the replicas of one model, and is the only one to reserve slots on them. All
// methods but Update may be called from any goroutine.
type Router struct {
	hooks   Hooks
	now     func() time.Time
	current atomic.Pointer[generation] // stored under mu, loaded without it

	freedSlots atomic.Uint64    // slots released so far, for the drain rate
	ranks      [4]atomic.Uint64 // selections by the rank of their replica, the last for all higher ranks
	changes    atomic.Int32     // calls of Refresh not yet taken into account
	reported   atomic.Bool      // the state last passed to Hooks.Overload

	mu           sync.Mutex // guards all below, and stores to current; held for no I/O and no hook
	queue        waitQueue
	rate         drainRate
	overload     overload
	agentWaits   map[*llmserver.Replica]context.CancelFunc // one at most for each replica
	agentWaiters sync.WaitGroup                            // goroutines of agentWaits
}

// New returns a router over members. The caller must Close it.
func New(members []*llmserver.Replica, build Builder, limits Limits, hooks Hooks) *Router {
	r := &Router{hooks: hooks, now: hooks.Now, agentWaits: make(map[*llmserver.Replica]context.CancelFunc)}
	if r.now == nil {
		r.now = time.Now
	}
	r.queue.onEmpty = r.onQueueEmpty
	r.current.Store(&generation{})
	r.Update(members, build, limits)
	return r
}

// Update replaces members, policy and limits. Requests in flight are not touched, and waiting ones
// keep their order of arrival. At most one call at a time. The policy is built without a lock,
// since building may take long; a concurrent Refresh cannot undo the Update, as both read and store
// the current generation under mu.
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
	llmserver.CompareReplicas(g.members)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publish(g)
}

// Refresh hands out newly free slots, and fails waiting requests that no replica can serve any
// more. Call Refresh when a replica becomes available or ceases to be, or its limit changes; see
// Replica.OnChange. Membership and policy stay.
//
// Concurrent calls coalesce: the first does the work, and the others return at once after counting
// themselves in changes. No change is lost: the counter returns to zero only by a compare-and-swap
// from the value read before the last pass, so a call during the pass causes another pass.
func (r *Router) Refresh() {
	if r.changes.Add(1) > 1 {
		return
	}
	panicked := true
	defer func() {
		if panicked {
			r.changes.Store(0) // otherwise no later call would do anything
		}
	}()
	for seen := int32(0); !r.changes.CompareAndSwap(seen, 0); {
		seen = r.changes.Load()
		r.republish()
	}
	panicked = false
}

// republish publishes a copy of the current generation.
func (r *Router) republish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := *r.current.Load()
	r.publish(&next)
}

// Close fails all waiting and later requests with ErrClosed and waits until the waits at agents
// have ended. Selections in use are not touched; their slots can be released as before. A second
// call does nothing. The closed generation is stored before the queue is emptied, both under mu, so
// a request queueing concurrently is in the queue before, or finds the router closed.
func (r *Router) Close() {
	r.mu.Lock()
	g := *r.current.Load()
	g.closed = true
	r.current.Store(&g)
	for r.queue.head != nil {
		r.queue.finishWait(r.queue.head, handover{err: ErrClosed})
	}
	r.mu.Unlock()
	r.agentWaiters.Wait()
}

// QueueLength returns the number of waiting requests.
func (r *Router) QueueLength() int { return int(r.queue.length.Load()) }

// Handoffs returns the number of slots handed to waiting requests so far, and how often an older
// request was skipped although able to use the slot.
func (r *Router) Handoffs() (slots, skips uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queue.handoffs, r.queue.skips
}

// Ranks returns the number of selections so far by the rank of their replica: 1, 2, 3, and higher.
func (r *Router) Ranks() (counts [4]uint64) {
	for i := range r.ranks {
		counts[i] = r.ranks[i].Load()
	}
	return counts
}

// Members returns the current replicas. The slice must not be changed.
func (r *Router) Members() []*llmserver.Replica { return r.current.Load().members }

// Policy returns the current policy.
func (r *Router) Policy() Policy { return r.current.Load().policy }

// Choose returns a replica for p with a slot reserved on it, and waits in the queue if all ranked
// replicas are full. Replicas in exclude are not chosen. The caller must release the selection; p
// must not be used by another Choose at the same time. Errors: ErrQueueFull, ErrQueueTimeout,
// ErrOverloaded, ErrDeadline, ErrClosed, an *UnavailableError, llmserver.ErrExhausted, or the cause
// of the end of ctx.
func (r *Router) Choose(ctx context.Context, p *Payload, exclude ...*llmserver.Replica) (*Selection, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s := r.newSelector(p, exclude)
	sel, err := s.selectNow(ctx)
	if !errors.Is(err, llmserver.ErrFull) {
		s.recycle()
		return sel, err
	}
	sel, err = s.waitForSlot(ctx)
	if _, unavailable := errors.AsType[*UnavailableError](err); unavailable {
		return s.lastResort(ctx)
	}
	return sel, err
}

// publish makes g the current generation, fails the waiting requests that no member can serve any
// more, and hands out free slots. The other waiters keep their old ranking until their turn is
// near, see nextFor. mu is held.
//
// No free slot is forgotten: offerFreeSlot here tries all members and finds every slot freed before
// the store; a slot freed afterwards is offered by the freeing goroutine, which sees the queue's
// length.
func (r *Router) publish(g *generation) {
	g.applyPanicThreshold()
	g.notDraining = slices.DeleteFunc(slices.Clone(g.members), (*llmserver.Replica).Draining)
	r.current.Store(g)
	for m, stop := range r.agentWaits {
		if _, member := g.index[m]; !member || m.Draining() {
			stop()
		}
	}
	for w := r.queue.head; w != nil; {
		next := w.next
		if !g.mayServe(w.payload, w.exclude) {
			r.queue.finishWait(w, handover{err: g.unavailable(w.payload, w.exclude)})
		}
		w = next
	}
	for i := range g.members {
		for r.queue.head != nil && r.offerFreeSlot(g, i) {
		}
	}
}
