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
// full one is waited for with its fallbacks. With a load factor it is a boundedHash.
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
		before := hashOf(prev)
		switch {
		case before == nil:
			c.ring = newRing(ids, o.VirtualNodes)
		case before.VirtualNodes == o.VirtualNodes && slices.Equal(before.ring.ids, ids):
			c.ring, c.rebuilds = before.ring, before.rebuilds
		default:
			c.ring, c.rebuilds = newRing(ids, o.VirtualNodes), before.rebuilds+1
		}
		if o.MaxLoadFactor > 0 {
			return newBoundedHash(c, prev)
		}
		return c
	}
}

// hashOf is the consistent hash that a policy is, nil if it is another one.
func hashOf(p Policy) *consistentHash {
	switch p := p.(type) {
	case *consistentHash:
		return p
	case *boundedHash:
		return p.consistentHash
	}
	return nil
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

// Stats implements Introspector.
func (c *consistentHash) Stats(report func(name string, value float64)) {
	report(StatRingRebuilds, float64(c.rebuilds))
}

func (c *consistentHash) Rank(p *Payload) iter.Seq[Tier] {
	hash := c.key(p)
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

// Preferred implements Introspector: the owner of the session, whether it is available or not.
func (c *consistentHash) Preferred(p *Payload, _ []Candidate) *llmserver.Replica {
	if p.SessionID == "" {
		return nil
	}
	for i := range c.ring.walk(c.key(p)) {
		return c.members[i]
	}
	return nil
}
