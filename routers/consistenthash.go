package routers

import (
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"berth/llmserver"
)

// consistentHash keeps a session where it was: it ranks the replica that owns the session's point
// on a ring, then those that follow clockwise, each by itself, so that load never overrules the
// session. A replica that is not available is walked past and its sessions go to the next ones; a
// full one is waited for with its fallbacks.
//
// With a load factor no replica takes much more than its share (Mirrokni, Thorup and
// Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2018): the walk goes all
// around, past replicas at the bound, and the least loaded of those comes last.
type consistentHash struct {
	HashOptions
	ring     *ring
	rebuilds uint64               // of the ring, since there is one
	members  []*llmserver.Replica // in the order of the ring's ids
	random   func() uint64
}

// HashOptions are the arguments of ConsistentHashRouter.
type HashOptions struct {
	VirtualNodes  int     // points of each replica on the ring, at least 1
	Fallbacks     int     // replicas ranked after the owner
	MaxLoadFactor float64 // bound on a replica's load over the mean, at least 1; 0: no bound
}

// DefaultHashOptions are those of Ray Serve.
var DefaultHashOptions = HashOptions{VirtualNodes: 100, Fallbacks: 2}

// boundFloor is the load below which nobody is over the bound: where the mean is
// next to nothing, one more request is no imbalance.
const boundFloor = 4

// ConsistentHash is the builder of a ring. A request without a session gets a
// place of its own from random, which must be safe for concurrent use.
func ConsistentHash(o HashOptions, random func() uint64) Builder {
	return func(members []*llmserver.Replica, prev Policy) Policy {
		members = slices.Clone(members)
		slices.SortStableFunc(members, func(a, b *llmserver.Replica) int { return strings.Compare(a.ID(), b.ID()) })
		ids := make([]string, len(members))
		for i, m := range members {
			ids[i] = m.ID()
		}
		c := &consistentHash{HashOptions: o, members: members, random: random}
		before, ok := prev.(*consistentHash)
		if ok && before.VirtualNodes == o.VirtualNodes && slices.Equal(before.ring.ids, ids) {
			c.ring, c.rebuilds = before.ring, before.rebuilds
			return c
		}
		c.ring = newRing(ids, o.VirtualNodes)
		if ok {
			c.rebuilds = before.rebuilds + 1
		}
		return c
	}
}

func consistentHashClass(kwargs map[string]any) (Builder, error) {
	o := DefaultHashOptions
	a := arguments{class: "ConsistentHashRouter", given: kwargs}
	a.integer("num_virtual_nodes", &o.VirtualNodes, 1, 10_000)
	a.integer("num_fallback_replicas", &o.Fallbacks, 0, math.MaxInt32)
	a.number("max_load_factor", &o.MaxLoadFactor, 1, math.MaxInt32)
	if err := a.check(); err != nil {
		return nil, err
	}
	return ConsistentHash(o, rand.Uint64), nil
}

// Ringed is a policy with a hash ring.
type Ringed interface {
	Rebuilds() uint64 // how often the ring was built anew for another membership
}

func (c *consistentHash) Rebuilds() uint64 { return c.rebuilds }

func (c *consistentHash) Rank(p *Payload) iter.Seq[Tier] {
	hash := c.key(p)
	if c.MaxLoadFactor > 0 {
		return c.bounded(hash)
	}
	return func(yield func(Tier) bool) {
		left := c.Fallbacks + 1
		for i := range c.ring.walk(hash) {
			if !c.members[i].Available() {
				continue
			}
			if left--; left < 0 || !yield(Tier{Replicas: c.members[i : i+1]}) {
				return
			}
		}
	}
}

// key is where a request lies on the ring.
func (c *consistentHash) key(p *Payload) uint64 {
	switch {
	case p.SessionID == "":
		return c.random()
	case p.Adapter != "":
		return ringHash([]byte(p.Adapter + "\x00" + p.SessionID)) // another conversation than with the model itself
	default:
		return ringHash([]byte(p.SessionID))
	}
}

// preferred is the owner of the session, whether it can serve or not.
func (c *consistentHash) preferred(p *Payload, _ []Candidate) *llmserver.Replica {
	if p.SessionID == "" {
		return nil
	}
	for i := range c.ring.walk(c.key(p)) {
		return c.members[i]
	}
	return nil
}

// bounded ranks clockwise those that are under the bound at this moment; that they still are is
// checked again when a slot is taken. The others are one tier at the end: somebody is always under
// the bound, but may have a capacity that is smaller still.
func (c *consistentHash) bounded(hash uint64) iter.Seq[Tier] {
	limit := c.bound()
	over := make([]bool, len(c.members))
	var last []*llmserver.Replica
	for i, m := range c.members {
		if over[i] = m.Load() >= limit; over[i] && m.Available() {
			last = append(last, m)
		}
	}
	return func(yield func(Tier) bool) {
		for i := range c.ring.walk(hash) {
			if over[i] || !c.members[i].Available() {
				continue
			}
			if !yield(Tier{Replicas: c.members[i : i+1], Limit: limit}) {
				return
			}
		}
		if len(last) > 0 {
			yield(Tier{Replicas: last})
		}
	}
}

// bound is the load that no replica exceeds: a slot is taken only below it. The
// request to be placed counts.
func (c *consistentHash) bound() int {
	total, n := 1, 0
	for _, m := range c.members {
		if m.Available() {
			total += m.Load()
			n++
		}
	}
	return max(boundFloor, int(math.Ceil(c.MaxLoadFactor*float64(total)/float64(max(n, 1)))))
}
