package routers

import "berth/llmserver"

// This file moves slots to waiting requests. Two rules keep a slot and a waiter from missing each
// other:
//
//   - A released slot is handed over while still counted, so no arrival can reserve the unit in
//     between. The gate's transfer of the unit and the removal of the waiter happen under
//     Router.mu.
//   - Where a slot does become free, the slot is freed first and the queue's length read
//     afterwards. A queueing request increments the length first and tries for a slot afterwards.
//     Go's atomics are sequentially consistent, so at least one of the two sees the other: either
//     the releasing side finds the waiter, or the waiter finds the slot.

// releaseSlot ends the use of a slot, or returns an unused one after a handover. Any goroutine may
// call releaseSlot, without mu. A slot counted by an agent is never handed over: the agent serves
// its own queue first.
func (r *Router) releaseSlot(s *llmserver.Slot) {
	r.freedSlots.Add(1)
	replica := s.Replica()
	if r.queue.length.Load() > 0 && !replica.CountsSlots() && r.tryHandOver(s) {
		return
	}
	s.Release()
	if !r.current.Load().serves(replica) {
		replica.NotifyFreed() // the replica may serve another model by now, with waiting requests
	}
	r.onFreed(replica)
}

// tryHandOver hands the slot to the next waiter for its replica, and reports success. On failure
// the slot is released, or was not touched since no request wants the replica.
func (r *Router) tryHandOver(s *llmserver.Slot) bool {
	defer r.reportOverload() // after the unlock
	r.mu.Lock()
	defer r.mu.Unlock()
	i, w := r.nextWaiter(s.Replica())
	if w == nil {
		return false
	}
	next := s.HandOver(w.payload.RequestID)
	if next == nil {
		return false // the replica is leaving, ejected, or over a lowered limit
	}
	r.deliver(r.current.Load(), i, w, next)
	return true
}

// onFreed offers a newly freed slot of a replica. The queue's length is read after the slot was
// freed, see above.
func (r *Router) onFreed(replica *llmserver.Replica) {
	if r.queue.length.Load() == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.current.Load()
	if i, member := g.index[replica]; member {
		r.offerFreeSlot(g, i)
	}
}

// offerFreeSlot delivers one free slot of the replica at index i to the next waiter for it, and
// reports success. A faster request may take the slot, and then offers the slot again on release.
// Where an agent counts the slots, a wait at the agent is started instead. mu is held.
func (r *Router) offerFreeSlot(g *generation, i int) bool {
	m := g.members[i]
	if m.CountsSlots() {
		r.startAgentWait(g, i)
		return false
	}
	if !m.Available() || !m.HasRoom() {
		return false
	}
	w := r.queue.nextFor(g, i)
	if w == nil {
		return false
	}
	slot, err := m.TryReserve(w.payload.RequestID, 0)
	if err != nil {
		return false
	}
	r.deliver(g, i, w, slot)
	return true
}

// deliver is waitQueue.deliver, and observes the queue before. mu is held.
func (r *Router) deliver(g *generation, i int, w *waiter, slot *llmserver.Slot) {
	if w.queued { // a newcomer that finds a slot has not waited
		r.observeQueue(r.now())
		r.overload.onServed()
	}
	r.queue.deliver(g, i, w, slot)
}

// nextWaiter returns the waiter for the next slot of a replica, nil if there is none, and the
// replica's index, -1 for a non-member. mu is held.
func (r *Router) nextWaiter(replica *llmserver.Replica) (i int, w *waiter) {
	g := r.current.Load()
	i, member := g.index[replica]
	switch {
	case !member:
		return -1, nil
	case !replica.Up(): // not Available: the circuit of an ejected replica decides in HandOver
		return i, nil
	}
	return i, r.queue.nextFor(g, i)
}
