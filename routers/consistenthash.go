package routers

import (
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"berth/llmserver"
)

// consistentHash keeps a session on its replica: the ranking begins with the owner of the session's
// point on a hash ring and continues clockwise, each replica as a separate tier, so that load never
// overrules the session. An unavailable replica is skipped, and its sessions go to the next ones
// until its return; a full one is waited for along with its fallbacks. With MaxLoadFactor, a
// consistentHash is part of a boundedHash.
//
// All fields are immutable. The ring depends on the IDs of the members only, so a replica going
// down and coming back moves only its own sessions.
type consistentHash struct {
	HashOptions
	ring     *ring
	rebuilds uint64               // rings built for a new membership, the first not counted
	members  []*llmserver.Replica // in the order of ring.ids
	random   func() uint64
}

// HashOptions are the arguments of ConsistentHashRouter.
type HashOptions struct {
	VirtualNodes  int     // points of each replica on the ring, at least 1
	Fallbacks     int     // replicas ranked after the owner
	MaxLoadFactor float64 // bound of a replica's load over the mean, at least 1; 0: no bound
}

// DefaultHashOptions are the defaults of Ray Serve.
var DefaultHashOptions = HashOptions{VirtualNodes: 100, Fallbacks: 2}

// ConsistentHash returns the builder of a consistent hash policy. A request without a session gets
// a point from random, which must be safe for concurrent use.
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

// hashOf returns the consistent hash of a policy, bounded or not, or nil.
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
	a := arguments{class: "ConsistentHashRouter", values: kwargs}
	a.integer("num_virtual_nodes", &o.VirtualNodes, 1, 10_000)
	a.integer("num_fallback_replicas", &o.Fallbacks, 0, math.MaxInt32)
	a.number("max_load_factor", &o.MaxLoadFactor, 1, math.MaxInt32)
	if err := a.validate(); err != nil {
		return nil, err
	}
	return ConsistentHash(o, rand.Uint64), nil
}

func (c *consistentHash) Rank(p *Payload) iter.Seq[Tier] {
	hash := c.keyHash(p)
	return func(yield func(Tier) bool) {
		left := c.Fallbacks + 1
		for i := range c.ring.clockwise(hash) {
			if !c.members[i].Available() {
				continue // uses up no fallback
			}
			if left--; left < 0 || !yield(Tier{Replicas: c.members[i : i+1]}) {
				return
			}
		}
	}
}

// keyHash returns the position of a request on the ring.
func (c *consistentHash) keyHash(p *Payload) uint64 {
	switch {
	case p.SessionID == "":
		return c.random()
	case p.Adapter != "":
		// A session with an adapter shares no cache with the same session of the model itself.
		return ringHash([]byte(p.Adapter + "\x00" + p.SessionID))
	default:
		return ringHash([]byte(p.SessionID))
	}
}

// Stats implements Introspector.
func (c *consistentHash) Stats(report func(name string, value float64)) {
	report(StatRingRebuilds, float64(c.rebuilds))
}

// Preferred implements Introspector: the owner of the session, available or not.
func (c *consistentHash) Preferred(p *Payload, _ []Candidate) *llmserver.Replica {
	if p.SessionID == "" {
		return nil
	}
	for i := range c.ring.clockwise(c.keyHash(p)) {
		return c.members[i]
	}
	return nil
}
