package routers

import (
	"iter"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"berth/llmserver"
)

// waitQueue holds the requests for which every ranked replica is full, in order of arrival. The
// queue is passive, without goroutine, timer or clock: the waiting request handles timeouts and
// disconnects, and the time comes from the caller, so virtual time can drive the queue, too.
//
// During an overload the waiters that are late, a prefix of the list, are served after the others
// and newest first; see overload.
//
//	        finishWait
//	waiting ─────────▶ finished   with a slot, or with the reason why there will be none
//	    └────────────▶ withdrawn  by timeout or disconnect
//	         withdraw
//
// Router.mu guards all fields. A waiter is in the list exactly while waiting, and the mutex makes
// each edge one step, so the two exclude each other: after a failed withdraw, waiter.done has a
// handover for the request to receive and to use or pass on.
type waitQueue struct {
	head, tail *waiter      // the oldest, the newest
	length     atomic.Int64 // written under Router.mu, read without
	arrivals   uint64       // the last arrival number assigned
	onEmpty    func()       // called, with Router.mu held, when the last waiter leaves; may be nil

	byAge  atomic.Bool // during an overload; written under Router.mu, read without
	inside *waiter     // the oldest one not late; nil if there is none, or not byAge
	late   int         // number of waiters before inside

	handoffs uint64 // slots delivered to waiters, freed ones and free ones
	skips    uint64 // skips of older waiters, one for each waiter and slot
}

const (
	// scanWindow is the number of waiters for a replica, the oldest ones, among which a slot goes
	// to the best ranking.
	scanWindow = 64
	// maxSkips bounds how often a waiter is skipped for younger ones.
	maxSkips = 64
	// maxReranks bounds the outdated rankings redone for one slot once a taker is known. The bound
	// is small, because ranking thousands of replicas takes long under a mutex.
	maxReranks = 4
	// sparseRanks is the number of ranked members up to which a ranking is erased one by one.
	sparseRanks = 8
)

// waiter is one waiting request. Router.mu guards the waiter from push on; before, the request's
// goroutine owns the waiter.
type waiter struct {
	payload  *Payload
	exclude  []*llmserver.Replica
	rankedBy *generation          // nil: rank again when the waiter's turn is near
	members  []*llmserver.Replica // of the last ranking generation
	tiers    []uint16             // by index in members: 1 for the best tier, 0 for not ranked
	ranked   []int32              // the indices at which tiers is not 0; incomplete beyond sparseRanks
	since    time.Time            // when the request would have queued, had it waited without a break
	queued   bool                 // found no slot when it queued
	late     bool                 // before waitQueue.inside
	skips    int                  // how often a younger waiter was preferred
	finished bool                 // ended by finishWait or withdraw
	done     chan handover        // of capacity 1, so that finishWait does not block under the mutex

	prev, next *waiter
}

// handover is the end of a wait: an unconfirmed slot, or an error.
type handover struct {
	slot *llmserver.Slot
	rank int // tier of its replica in the waiter's ranking
	err  error
}

// setRanking records the tier of each member, and reports whether any member is ranked. Once w is
// in the queue, Router.mu is held.
func (w *waiter) setRanking(g *generation, ranking iter.Seq[Tier]) (found bool) {
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
				w.tiers[i], found = tier, true
				if len(w.ranked) <= sparseRanks {
					w.ranked = append(w.ranked, int32(i))
				}
			}
		}
	}
	return found
}

// eraseRanking resets tiers to n unranked members. A few entries are erased one by one: in a large
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

// bestWithRoom returns the index of the member with room that w ranks best, by load within a tier,
// -1 if none has room. Members whose agent counts the slots are left out: their room is not known
// here, see startAgentWait.
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

// push inserts w by the payload's arrival number: a new request at the end, another one at its old
// position, so that a rejected slot does not cost the position.
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
	switch {
	case w.next != nil && w.next.late:
		w.late = true
		q.late++
	case q.byAge.Load() && w.next == q.inside:
		q.inside = w
	}
	q.length.Add(1)
}

// unlink removes w from the list. The length is decremented last, so a length of zero always means
// an empty list.
func (q *waitQueue) unlink(w *waiter) {
	if w.late {
		q.late--
	}
	if w == q.inside {
		q.inside = w.next
	}
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

// withdraw removes w and reports whether w was still waiting. Otherwise w.done has the handover,
// and the caller must receive from w.done.
func (q *waitQueue) withdraw(w *waiter) bool {
	if w.finished {
		return false
	}
	q.unlink(w)
	return true
}

// finishWait ends the wait of w. The send does not block. The waiting goroutine may run before the
// mutex is released, but does not read w before receiving the handover.
func (q *waitQueue) finishWait(w *waiter, h handover) {
	q.unlink(w)
	w.finished = true
	w.done <- h
}

// orderByAge begins or ends the order of an overload. No waiter is late at the beginning.
func (q *waitQueue) orderByAge(on bool) {
	for w := q.head; w != nil && w.late; w = w.next {
		w.late = false
	}
	q.byAge.Store(on)
	q.inside, q.late = nil, 0
	if on {
		q.inside = q.head
	}
}

// ageOut makes the waiters from before the given time late.
func (q *waitQueue) ageOut(before time.Time) {
	for q.inside != nil && q.inside.since.Before(before) {
		q.inside.late = true
		q.late++
		q.inside = q.inside.next
	}
}

// inTime returns the number of waiters that are not late.
func (q *waitQueue) inTime() int { return int(q.length.Load()) - q.late }

// nextFor returns the waiter for the next slot of g's replica at index i, nil if none could use the
// slot: the best of the queue or, during an overload, of the waiters that are not late; otherwise
// the best of the late ones, beginning with the newest.
func (q *waitQueue) nextFor(g *generation, i int) *waiter {
	if !q.byAge.Load() {
		return bestFrom(g, i, q.head, (*waiter).younger)
	}
	if w := bestFrom(g, i, q.inside, (*waiter).younger); w != nil {
		return w
	}
	newest := q.tail
	if q.inside != nil {
		newest = q.inside.prev
	}
	return bestFrom(g, i, newest, (*waiter).older)
}

func (w *waiter) younger() *waiter { return w.next }
func (w *waiter) older() *waiter   { return w.prev }

// bestFrom returns the waiter for a slot of g's replica at index i, nil if none could use the slot:
// among the first scanWindow that rank the replica, from w on, the best ranking, the first of
// equals; but first of all the first one skipped maxSkips times.
//
// Rankings by an earlier generation are redone on the way: those of the oldest few, and as many as
// needed to find a taker. Other outdated waiters are skipped this time, which counts, so none is
// skipped forever; each slot ranks the next few. Ranking the whole queue in publish instead would
// hold the mutex for queue length times number of members.
func bestFrom(g *generation, i int, w *waiter, next func(*waiter) *waiter) *waiter {
	var best *waiter
	scanned, reranked := 0, 0
	for ; w != nil && scanned < scanWindow; w = next(w) {
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

// deliver gives the slot on g's replica at index i to w, the result of nextFor, and counts the
// skipped older waiters: those ranking the replica, and those with an outdated ranking, which might
// rank the replica, too. Late ones are not skipped: the order is not theirs.
func (q *waitQueue) deliver(g *generation, i int, w *waiter, slot *llmserver.Slot) {
	for older := w.prev; !w.late && older != nil && !older.late; older = older.prev {
		if older.rankedBy != g || older.tiers[i] != 0 {
			older.skips++
			q.skips++
		}
	}
	q.handoffs++
	q.finishWait(w, handover{slot: slot, rank: int(w.tiers[i])})
}
