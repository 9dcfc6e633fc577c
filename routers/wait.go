package routers

import (
	"context"
	"time"
)

// waitForSlot queues until a slot was handed over and confirmed, or the wait has ended. waitForSlot
// blocks without the mutex. A slot rejected by its replica sends the request back to the queue, at
// the old position and with the remaining time: Payload.Waited adds up all waits of a request,
// those of earlier attempts included.
func (s *selector) waitForSlot(ctx context.Context) (*Selection, error) {
	began := time.Now()
	// A context and not a timer: the end stays visible however often the request queues again.
	timeout, stop := context.WithTimeout(context.Background(), s.generation.limits.QueueTimeout-s.payload.Waited)
	defer stop()
	for {
		w, err := s.enqueue(ctx)
		if err != nil {
			return nil, err
		}
		h := s.router.awaitHandover(ctx, w, timeout.Done())
		now := time.Now()
		s.payload.Waited, began = s.payload.Waited+now.Sub(began), now
		if g := s.router.current.Load(); h.err == ErrQueueTimeout && g.awaitsMembers(s.payload) {
			return nil, g.unavailable(s.payload, s.exclude)
		}
		if h.err != nil {
			return nil, h.err
		}
		if sel, err := s.confirmOrReject(ctx, &Selection{slot: h.slot, rank: h.rank}); sel != nil || err != nil {
			return sel, err
		}
	}
}

// enqueue adds the request to the queue and tries once more for slots freed before. Both are one
// step under the mutex:
//
//   - The length is incremented before the last try, see handover.go.
//   - A generation published after the ranking is noticed by its pointer, and the request is ranked
//     again; a later generation ranks the request when its turn is near.
//   - Limits, overload and the deadline of ctx are checked after the last try, so no request is
//     refused that finds a slot. A request that queues again is not refused either and keeps its
//     position.
//
// The first ranking is done before the lock, since ranking thousands of replicas may take long.
func (s *selector) enqueue(ctx context.Context) (*waiter, error) {
	r := s.router
	defer r.reportOverload() // after the unlock
	w := &waiter{payload: s.payload, exclude: s.exclude, done: make(chan handover, 1)}
	ranked := w.setRanking(s.generation, s.ranking)
	r.mu.Lock()
	defer r.mu.Unlock()
	if g := r.current.Load(); g != s.generation {
		s.useGeneration(g)
		ranked = w.setRanking(g, s.ranking)
	}
	g := s.generation
	switch {
	case g.closed:
		return nil, ErrClosed
	case !ranked && !g.awaitsMembers(s.payload):
		return nil, g.unavailable(s.payload, s.exclude)
	}
	if _, learns := g.policy.(Learner); learns {
		w.rankedBy = nil // the conversation may be placed during the wait
	}
	s.waiter = w
	newcomer := s.payload.arrival == 0
	now := r.now()
	w.since = now.Add(-s.payload.Waited)
	r.queue.push(w)
	r.observeQueue(now)
	for !w.finished {
		i := w.bestWithRoom(g)
		if i < 0 {
			break
		}
		r.offerFreeSlot(g, i) // perhaps to an older waiter; if another request was faster, there may be room elsewhere
	}
	if w.finished {
		return w, nil
	}
	w.queued = true
	if newcomer {
		deadline, _ := ctx.Deadline()
		if err := s.refusal(now, deadline); err != nil {
			r.queue.withdraw(w)
			s.payload.arrival = 0 // a later Choose starts at the end of the queue
			return nil, err
		}
	}
	r.startAgentWaits(g, w)
	return w, nil
}

// refusal returns the error for a newcomer that found no slot, nil if it may wait. While there is
// no replica, only the length of the queue counts. Router.mu is held, and the newcomer is the last
// in the queue.
func (s *selector) refusal(now, deadline time.Time) error {
	r, g := s.router, s.generation
	if !g.awaitsMembers(s.payload) {
		return r.refusal(now, deadline, g.limits)
	}
	if g.limits.MaxQueued >= 0 && r.QueueLength() > g.limits.MaxQueued {
		return g.unavailable(s.payload, s.exclude)
	}
	return nil
}

// awaitHandover blocks until w is finished, the timeout ends or the client disconnects. A slot
// arriving at the same moment as the timeout is used; after a disconnect the slot is passed on. In
// both cases withdraw decides under the mutex which came first. After a failed withdraw the
// handover is in w.done already, since finishWait sends under the mutex: the receive does not
// block, and no slot stays behind. If a slot and a disconnect are ready together, select may return
// the slot; Dispatch then fails, and Release passes the slot on.
func (r *Router) awaitHandover(ctx context.Context, w *waiter, timeout <-chan struct{}) handover {
	select {
	case h := <-w.done:
		return h
	case <-timeout:
		if r.leaveQueue(w) {
			return handover{err: ErrQueueTimeout}
		}
		return <-w.done
	case <-ctx.Done():
		if !r.leaveQueue(w) {
			if h := <-w.done; h.slot != nil {
				r.releaseSlot(h.slot)
			}
		}
		return handover{err: context.Cause(ctx)}
	}
}
