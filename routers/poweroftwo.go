package routers

import (
	"iter"
	"math/rand/v2"

	"berth/llmserver"
)

// powerOfTwo samples two distinct replicas as the first tier, in which load decides; the rest
// follow as one tier. Two samples already avoid the long queues that a single random choice makes,
// and unlike the least loaded of all they do not attract every simultaneous arrival to one replica.
// Source: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001.
type powerOfTwo struct {
	members []*llmserver.Replica
	intn    func(n int) int
}

// PowerOfTwo returns the builder of a power of two choices policy. intn returns a random number
// below n and must be safe for concurrent use.
func PowerOfTwo(intn func(n int) int) Builder {
	return func(members []*llmserver.Replica, _ Policy) Policy {
		return &powerOfTwo{members, intn}
	}
}

func powerOfTwoClass(kwargs map[string]any) (Builder, error) {
	return PowerOfTwo(rand.IntN), (&arguments{class: "PowerOfTwoChoicesRouter", values: kwargs}).validate()
}

func (p *powerOfTwo) Rank(*Payload) iter.Seq[Tier] {
	first := p.sample(nil)
	if first == nil {
		return func(func(Tier) bool) {}
	}
	second := p.sample(first)
	return func(yield func(Tier) bool) {
		if second == nil {
			yield(Tier{Replicas: []*llmserver.Replica{first}})
			return
		}
		if !yield(Tier{Replicas: []*llmserver.Replica{first, second}}) {
			return
		}
		if rest := p.availableExcept(first, second); len(rest) > 0 {
			yield(Tier{Replicas: rest})
		}
	}
}

// sample returns a uniformly random available replica other than except, nil if there is none.
// Draws are from all members until one fits; after a few misses, when much of the fleet must be
// down, from the available ones.
func (p *powerOfTwo) sample(except *llmserver.Replica) *llmserver.Replica {
	if len(p.members) == 0 {
		return nil
	}
	for range 4 {
		if r := p.members[p.intn(len(p.members))]; r != except && r.Available() {
			return r
		}
	}
	left := p.availableExcept(except, nil)
	if len(left) == 0 {
		return nil
	}
	return left[p.intn(len(left))]
}

// availableExcept returns the available replicas other than two.
func (p *powerOfTwo) availableExcept(a, b *llmserver.Replica) []*llmserver.Replica {
	rest := make([]*llmserver.Replica, 0, len(p.members))
	for _, r := range p.members {
		if r != a && r != b && r.Available() {
			rest = append(rest, r)
		}
	}
	return rest
}
