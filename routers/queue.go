package routers

import (
	"iter"
	"math"
	"slices"
	"sync/atomic"

	"berth/llmserver"
)

// waitQueue holds the requests for which every ranked replica is full, in order of arrival. It is
// passive, without goroutine, timer or clock: timeouts and disconnects are the business of the waiting
// request, so that virtual time can drive it, too.
//
//	          finish
//	waiting ─────────▶ finished   with a slot, or with the reason why there will be none
//	    └────────────▶ withdrawn  by timeout or disconnect
//	         withdraw
//
// Router.mu guards all of it. A waiter is in the list exactly while it is waiting, and the mutex makes
// each edge one step, so the two exclude each other: a request whose withdraw fails has been given
// something, which it receives from waiter.done and passes on.
type waitQueue struct {
	head, tail *waiter      // the oldest, the newest
	length     atomic.Int64 // written under Router.mu, read without it
	arrivals   uint64       // the last arrival number assigned
	onEmpty    func()       // called, with Router.mu held, when the last waiter leaves; may be nil

	handoffs uint64 // slots delivered to waiters
	skips    uint64 // times that an older waiter was passed over for one
}

const (
	// scanWindow is the number of the oldest waiters for a replica among which its slot goes to the one
	// that ranks the replica best.
	scanWindow = 64
	// maxSkips is the number of times that a waiter is passed over for a younger one.
	maxSkips = 64
	// maxReranks bounds the outdated rankings that are redone for one slot once a taker is known. It
	// is small, because ranking thousands of replicas is long for a mutex to be held.
	maxReranks = 4
	// sparseRanks is the number of ranked members up to which a ranking is erased one by one.
	sparseRanks = 8
)

// waiter is one waiting request. Router.mu guards it from push on; before that it belongs to the
// request's goroutine.
type waiter struct {
	payload  *Payload
	exclude  []*llmserver.Replica
	rankedBy *generation          // nil: rank again when the waiter's turn is near
	members  []*llmserver.Replica // of the generation that ranked it last
	tiers    []uint16             // by index in members: 1 for the best tier, 0 for not ranked
	ranked   []int32              // the indices at which tiers is not 0; incomplete beyond sparseRanks
	skips    int                  // times that a younger waiter was preferred
	finished bool                 // no longer in the queue
	done     chan handover        // of capacity 1, so that finish does not block under the mutex

	prev, next *waiter
}

// handover is the end of a wait: a slot that is not confirmed yet, or an error.
type handover struct {
	slot *llmserver.Slot
	rank int // tier of its replica in the waiter's ranking
	err  error
}

// setRanking records the tier of each member, and reports whether there is any.
func (w *waiter) setRanking(g *generation, ranking iter.Seq[Tier]) (any bool) {
	w.rankedBy, w.members = g, g.members
	w.eraseRanking(len(g.members))
	if ranking == nil {
		return false
	}
	tier := uint16(0)
	for t := range ranking {
		tier = min(tier, math.MaxUint16-1) + 1
		for _, r := range t.Replicas {
			if i, ok := g.index[r]; ok && !slices.Contains(w.exclude, r) {
				w.tiers[i], any = tier, true
				if len(w.ranked) <= sparseRanks {
					w.ranked = append(w.ranked, int32(i))
				}
			}
		}
	}
	return any
}

// eraseRanking makes tiers rank none of n members. A few entries are erased one by one: in a large
// fleet most of the slice is not in the processor's cache.
func (w *waiter) eraseRanking(n int) {
	switch {
	case len(w.tiers) != n:
		w.tiers = make([]uint16, n)
	case len(w.ranked) > sparseRanks:
		clear(w.tiers)
	default:
		for _, i := range w.ranked {
			w.tiers[i] = 0
		}
	}
	w.ranked = w.ranked[:0]
}

// bestWithRoom returns the index of the member with room that w ranks best, by load within a tier, -1
// if none has room. Members whose agent counts the slots are left out: their room is not known here,
// see startAgentWait.
func (w *waiter) bestWithRoom(g *generation) int {
	best, tier, least := -1, uint16(0), 0.0
	for i, m := range g.members {
		t := w.tiers[i]
		if t == 0 || best >= 0 && t > tier || m.CountsSlots() || !m.Available() || !m.HasRoom() {
			continue
		}
		if load := m.WeightedLoad(); best < 0 || t < tier || load < least {
			best, tier, least = i, t, load
		}
	}
	return best
}

// push inserts w by its payload's arrival number: at the end if it is new, else at its old position,
// so that a request whose slot was refused does not start over.
func (q *waitQueue) push(w *waiter) {
	if w.payload.arrival == 0 {
		q.arrivals++
		w.payload.arrival = q.arrivals
	}
	after := q.tail
	for after != nil && after.payload.arrival > w.payload.arrival {
		after = after.prev
	}
	w.prev = after
	if after != nil {
		w.next, after.next = after.next, w
	} else {
		w.next, q.head = q.head, w
	}
	if w.next != nil {
		w.next.prev = w
	} else {
		q.tail = w
	}
	q.length.Add(1)
}

// unlink removes w from the list. The length is decremented last, so that it never reports an empty
// queue while a waiter is in it.
func (q *waitQueue) unlink(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		q.head = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		q.tail = w.prev
	}
	w.prev, w.next = nil, nil
	if q.length.Add(-1) == 0 && q.onEmpty != nil {
		q.onEmpty()
	}
}

// withdraw removes w and reports whether it was still waiting. If not, its end is in w.done, and the
// caller must receive it.
func (q *waitQueue) withdraw(w *waiter) bool {
	if w.finished {
		return false
	}
	q.unlink(w)
	return true
}

// finish ends the wait of w. The send does not block, and the waiting goroutine wakes up on its own: it
// may run before the mutex is released, but does not read w until it has received the handover.
func (q *waitQueue) finish(w *waiter, h handover) {
	w.finished = true
	w.done <- h
	q.unlink(w)
}

// nextFor returns the waiter that gets the next slot of g's replica at index i, nil if none could use
// it: among the oldest scanWindow that rank the replica, the one that ranks it best, the older of
// equals; but first of all the oldest that was passed over maxSkips times.
//
// Rankings by an earlier generation are redone on the way: those of the oldest few, and as many as it
// takes to find a taker. Other outdated waiters are passed over this time, which counts as a skip, so
// none is passed over forever; each slot ranks the next few. To rank the whole queue in publish
// instead would hold the mutex for its length times the number of members.
func (q *waitQueue) nextFor(g *generation, i int) *waiter {
	var best *waiter
	scanned, reranked := 0, 0
	for w := q.head; w != nil && scanned < scanWindow; w = w.next {
		if w.rankedBy != g {
			if best != nil && reranked >= maxReranks && w.skips < maxSkips {
				continue
			}
			w.setRanking(g, g.rank(w.payload))
			reranked++
		}
		if w.tiers[i] == 0 {
			continue
		}
		scanned++
		if w.skips >= maxSkips {
			return w
		}
		if best == nil || w.tiers[i] < best.tiers[i] {
			best = w
		}
	}
	return best
}

// deliver gives the slot on g's replica at index i to w, which nextFor has returned, and counts the
// older waiters that it skips: those that could have used the slot, and those whose ranking is
// outdated, which may have been able to.
func (q *waitQueue) deliver(g *generation, i int, w *waiter, slot *llmserver.Slot) {
	for older := w.prev; older != nil; older = older.prev {
		if older.rankedBy != g || older.tiers[i] != 0 {
			older.skips++
			q.skips++
		}
	}
	q.handoffs++
	q.finish(w, handover{slot: slot, rank: int(w.tiers[i])})
}
