package routers

import (
	"iter"
	"math"
	"slices"

	"berth/llmserver"
)

// line is the waiting line of a router: the requests for which every ranked
// replica was full, in order of arrival. It is passive, without goroutine, timer
// or clock, and guarded by the router's mutex: who waits, who gives up and who drives
// virtual time is the caller's business.
//
//	         hand
//	waiting ──────▶ handed     by a slot, or by the reason why none will come
//	    └─────────▶ gone
//	         leave
//
// A waiter is on the list exactly while it is waiting, and the mutex makes
// each edge one step: who leaves after being handed a slot is told so by leave and
// passes the slot on.
type line struct {
	head, tail *waiter // the oldest, the newest
	length     int
	places     uint64 // the last place given out

	handed, passed uint64 // slots handed to waiters, and times that an older waiter was passed over for one
}

const (
	// window is how many of the oldest waiters for a replica are looked at
	// for the one that wants it most.
	window = 64
	// patience is how often a waiter lets a younger one go first.
	patience = 64
	// nearRanks bounds how many outdated rankings are made anew for one slot, once a taker is known.
	// It is small, since a ranking of thousands of replicas takes long for a mutex to be held.
	nearRanks = 4
	// fewRanked is how many members a ranking may have to be taken back one by one.
	fewRanked = 8
)

// waiter is one request in line.
type waiter struct {
	payload *Payload
	exclude []*llmserver.Replica
	ranked  *generation          // by which it is ranked; nil: to be ranked again when its turn is near
	members []*llmserver.Replica // of the generation that ranked it last
	tiers   []uint16             // by index in members: 1 for the best tier, 0 for not ranked
	noted   []int32              // the indices at which tiers is not 0; not all if more than fewRanked
	passed  int                  // how often a younger waiter was preferred
	handed  bool                 // no longer in line
	done    chan handover

	prev, next *waiter
}

// handover is how a wait ends: with a slot yet to be confirmed, or with an error.
type handover struct {
	slot *llmserver.Slot
	rank int // of its replica for the waiter
	err  error
}

// rank notes in which tier each member is; false if none is in any.
func (w *waiter) rank(g *generation, ranking iter.Seq[Tier]) (any bool) {
	w.ranked, w.members = g, g.members
	w.clear(len(g.members))
	if ranking == nil {
		return false
	}
	tier := uint16(0)
	for t := range ranking {
		tier = min(tier, math.MaxUint16-1) + 1
		for _, r := range t.Replicas {
			if i, ok := g.index[r]; ok && !slices.Contains(w.exclude, r) {
				w.tiers[i], any = tier, true
				if len(w.noted) <= fewRanked {
					w.noted = append(w.noted, int32(i))
				}
			}
		}
	}
	return any
}

// clear makes tiers that rank none of n members. Few notes are taken back one by one: of a large fleet, memory
// for all members is far away.
func (w *waiter) clear(n int) {
	switch {
	case len(w.tiers) != n:
		w.tiers = make([]uint16, n)
	case len(w.noted) > fewRanked:
		clear(w.tiers)
	default:
		for _, i := range w.noted {
			w.tiers[i] = 0
		}
	}
	w.noted = w.noted[:0]
}

// best is the index of the member with room that w ranks best, by burden within a tier; -1 if none has room.
// Those of agents are left out: their room is sought, not seen.
func (w *waiter) best(g *generation) int {
	best, tier, least := -1, uint16(0), 0.0
	for i, m := range g.members {
		t := w.tiers[i]
		if t == 0 || best >= 0 && t > tier || m.CountsSlots() || !m.Available() || !m.HasRoom() {
			continue
		}
		if burden := m.WeightedLoad(); best < 0 || t < tier || burden < least {
			best, tier, least = i, t, burden
		}
	}
	return best
}

// join puts w in line by its payload's place: at the end if it is new, else
// where it was before.
func (l *line) join(w *waiter) {
	if w.payload.place == 0 {
		l.places++
		w.payload.place = l.places
	}
	after := l.tail
	for after != nil && after.payload.place > w.payload.place {
		after = after.prev
	}
	w.prev = after
	if after != nil {
		w.next, after.next = after.next, w
	} else {
		w.next, l.head = l.head, w
	}
	if w.next != nil {
		w.next.prev = w
	} else {
		l.tail = w
	}
	l.length++
}

// remove takes a waiter from the list.
func (l *line) remove(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.head = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.tail = w.prev
	}
	w.prev, w.next = nil, nil
	l.length--
}

// leave takes w out of the line; false if it was handed something before.
func (l *line) leave(w *waiter) bool {
	if w.handed {
		return false
	}
	l.remove(w)
	return true
}

// hand ends the wait of w.
func (l *line) hand(w *waiter, h handover) {
	l.remove(w)
	w.handed = true
	w.done <- h
}

// next is the waiter to whom a slot of g's replica at index i goes: among
// the oldest that rank it, the one that ranks it best, the older of equals; but before
// anyone the oldest whose patience is at its end. Nil if nobody could use it.
//
// On the way waiters whose ranking is outdated are ranked by g: the oldest few, and as many as it
// takes to find a taker. The others are passed by this time, which counts against their patience; each
// slot ranks the next few.
func (l *line) next(g *generation, i int) *waiter {
	var best *waiter
	seen, made := 0, 0
	for w := l.head; w != nil && seen < window; w = w.next {
		if w.ranked != g {
			if best != nil && made >= nearRanks && w.passed < patience {
				continue
			}
			w.rank(g, g.rank(w.payload))
			made++
		}
		if w.tiers[i] == 0 {
			continue
		}
		seen++
		if w.passed >= patience {
			return w
		}
		if best == nil || w.tiers[i] < best.tiers[i] {
			best = w
		}
	}
	return best
}

// give hands the slot on g's replica at index i to w, which next has found, and counts whom it passes over.
func (l *line) give(g *generation, i int, w *waiter, slot *llmserver.Slot) {
	for older := w.prev; older != nil; older = older.prev {
		if older.ranked != g || older.tiers[i] != 0 {
			older.passed++
			l.passed++
		}
	}
	l.handed++
	l.hand(w, handover{slot: slot, rank: int(w.tiers[i])})
}
