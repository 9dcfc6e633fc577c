package routers

import (
	"iter"
	"math"
	"math/bits"
	"sync/atomic"

	"berth/llmserver"
)

// boundedHash is a consistent hash with bounded load: it prefers replicas below MaxLoadFactor times
// the mean. The ranking goes all around the ring, skips replicas at the bound, and has those as one
// tier at its end; queued requests ignore the bound. Source: Mirrokni, Thorup and Zadimoghaddam,
// "Consistent Hashing with Bounded Loads", 2018.
//
// On its own, that rule lets one hot session fill its home replica to the bound, spill to the next
// one, and so on, evicting the sessions at home there. So a session fills only its home replica to
// the bound, and others to halfway between the mean and the bound; a session with more than half a
// replica's mean load goes to the mean everywhere.
type boundedHash struct {
	*consistentHash
	// ongoing counts requests by the hash of their session, in enough buckets to mostly keep hot
	// sessions apart. All policies of one router share the counts.
	ongoing []atomic.Int32
}

// minBound is the load up to which no replica is over the bound: with a mean near zero one more
// request is no imbalance.
const minBound = 4

// newBoundedHash takes over the counts of prev, unless the number of members has changed a lot.
func newBoundedHash(c *consistentHash, prev Policy) *boundedHash {
	buckets := 64 << bits.Len(uint(len(c.members)))
	if prev, ok := prev.(*boundedHash); ok && len(prev.ongoing) == buckets {
		return &boundedHash{c, prev.ongoing}
	}
	return &boundedHash{c, make([]atomic.Int32, buckets)}
}

// Rank yields, clockwise, the replicas under the bound that have room for this session without
// displacing others, then the other ones under the bound, then those over it as one tier: some
// replica is always under the bound, but its capacity may be smaller. Loads are read once per
// ranking, so every pass over the sequence sees the same; because of Tier.Limit the bound is
// checked again in the step that reserves the slot.
func (b *boundedHash) Rank(p *Payload) iter.Seq[Tier] {
	hash := b.keyHash(p)
	mean, limit := b.loadBound()
	own, other := limit, (mean+limit)/2
	if 2*int(b.sessionCount(hash).Load()) > mean {
		own, other = mean, mean
	}
	loads := make([]int, len(b.members))
	var over []*llmserver.Replica
	for i, m := range b.members {
		if loads[i] = m.Load(); loads[i] >= limit && m.Available() {
			over = append(over, m)
		}
	}
	return func(yield func(Tier) bool) {
		for _, below := range []bool{true, false} {
			most := own
			for i := range b.ring.clockwise(hash) {
				if !b.members[i].Available() {
					continue
				}
				under := loads[i] < most
				most = other
				if loads[i] < limit && under == below && !yield(Tier{Replicas: b.members[i : i+1], Limit: limit}) {
					return
				}
			}
		}
		if len(over) > 0 {
			yield(Tier{Replicas: over})
		}
	}
}

// loadBound returns the mean load, in whole requests, and the bound, below which alone slots are
// reserved. The request to be placed counts.
func (b *boundedHash) loadBound() (mean, limit int) {
	total, n := 1, 0
	for _, m := range b.members {
		if m.Available() {
			total += m.Load()
			n++
		}
	}
	exact := float64(total) / float64(max(n, 1))
	return max(minBound, int(exact)), max(minBound, int(math.Ceil(b.MaxLoadFactor*exact)))
}

// sessionCount returns the count of ongoing requests of the sessions with this hash.
func (b *boundedHash) sessionCount(hash uint64) *atomic.Int32 {
	return &b.ongoing[hash%uint64(len(b.ongoing))]
}

// Reserved counts an ongoing request of a session. The bucket incremented here is the one
// decremented at the end, also if a policy with other buckets was installed in between.
func (b *boundedHash) Reserved(p *Payload, _ *llmserver.Replica) (matched int, settled func(Outcome)) {
	if p.SessionID == "" {
		return 0, nil
	}
	count := b.sessionCount(b.keyHash(p))
	count.Add(1)
	return 0, func(Outcome) { count.Add(-1) }
}
