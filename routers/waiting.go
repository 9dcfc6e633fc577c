package routers

import "time"

// Waiting describes a queued request for operators.
type Waiting struct {
	RequestID string
	Since     time.Time
	Replica   string // ID of the only replica ranked first; "" if several are
}

// Waiting returns the oldest requests of the queue, at most limit, the oldest first. The mutex is
// held for a moment that grows with limit and, for policies that rank many replicas, with their
// number.
func (r *Router) Waiting(limit int) (oldest []Waiting) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := r.queue.head; w != nil && len(oldest) < limit; w = w.next {
		oldest = append(oldest, Waiting{w.payload.RequestID, w.since, w.firstRanked()})
	}
	return oldest
}

// firstRanked returns the ID of the replica ranked first by the last ranking of w, or "" if several
// share that tier. Replicas tried before are not ranked. Router.mu is held.
func (w *waiter) firstRanked() (id string) {
	best := uint16(0)
	for i, tier := range w.tiers {
		switch {
		case tier == 0 || best != 0 && tier > best:
		case tier == best:
			id = ""
		default:
			best, id = tier, w.members[i].ID()
		}
	}
	return id
}
