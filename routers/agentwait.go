package routers

import (
	"context"
	"math/rand/v2"
	"time"

	"berth/llmserver"
)

const (
	// agentWaitTimeout bounds one wait in an agent's queue.
	agentWaitTimeout = 30 * time.Second
	// agentWaitPause is the pause, with jitter, after a wait that failed within half of its
	// timeout, so that a failing agent is not called in a tight loop.
	agentWaitPause = 100 * time.Millisecond
)

// startAgentWait keeps one reservation queued at the agent of the replica at index i while requests
// wait here for that replica. One per ingress, regardless of demand, makes ingresses share an agent
// fairly. On arrival the slot goes to the waiter that ranks the replica best at that moment,
// perhaps one queued after the wait began.
//
// TryReserve reserves the local unit first, so this ingress, pending reservation included, never
// exceeds the limit reported by the agent. When the wait fails, Confirm has freed the unit and
// cancelled the token, in case the agent granted the slot and the reply was lost.
//
// Router.mu is held. Only the call to the agent is on a goroutine of its own, which ends when the
// call does: after agentWaitTimeout, when the queue is empty, or when the replica leaves the
// membership. Router.Close waits for it. The entry in agentWaits keeps the number at one.
func (r *Router) startAgentWait(g *generation, i int) {
	m := g.members[i]
	if r.agentWaits[m] != nil || !m.Available() || r.queue.nextFor(g, i) == nil {
		return
	}
	slot, err := m.TryReserve("wait queue", 0)
	if err != nil {
		return // all slots of the replica are held here; the next release starts a wait
	}
	ctx, stop := context.WithCancel(context.Background())
	r.agentWaits[m] = stop
	r.agentWaiters.Go(func() {
		defer stop()
		began := time.Now()
		err := slot.Confirm(ctx, agentWaitTimeout)
		if err != nil && time.Since(began) < agentWaitTimeout/2 {
			select {
			case <-time.After(agentWaitPause/2 + rand.N(agentWaitPause)):
			case <-ctx.Done():
			}
		}
		wanted := r.onAgentWait(slot, err)
		if r.hooks.AgentWaitEnded != nil {
			r.hooks.AgentWaitEnded(m.ID(), wanted, err)
		}
	})
}

// startAgentWaits starts a wait at the agent of every replica ranked by w. Router.mu is held.
func (r *Router) startAgentWaits(g *generation, w *waiter) {
	for i, m := range g.members {
		if w.tiers[i] != 0 && m.CountsSlots() {
			r.startAgentWait(g, i)
		}
	}
}

// onAgentWait delivers the slot of a wait that has ended, and starts the next one if there is
// demand. Both are one step under the mutex: a request queued while the old wait is being cancelled
// finds the entry in agentWaits, starts no wait, and is seen here. onAgentWait reports whether a
// request wanted the slot.
func (r *Router) onAgentWait(slot *llmserver.Slot, err error) (wanted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := slot.Replica()
	delete(r.agentWaits, m)
	i, w := r.nextWaiter(m)
	switch {
	case err == nil && w != nil:
		slot.Rename(w.payload.RequestID)
		r.deliver(r.current.Load(), i, w, slot)
	case err == nil:
		slot.Release()
	}
	if i >= 0 {
		r.startAgentWait(r.current.Load(), i)
	}
	return w != nil
}

// onQueueEmpty ends the activities of a non-empty queue: the waits at agents and the interval of
// the drain rate. Router.mu is held.
func (r *Router) onQueueEmpty() {
	for _, stop := range r.agentWaits {
		stop()
	}
	r.observeQueue(r.now())
}
