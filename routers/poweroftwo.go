package routers

import (
	"iter"
	"math/rand/v2"

	"berth/llmserver"
)

// powerOfTwo samples two distinct replicas and lets load decide between them;
// the rest follow as one tier. Two samples already avoid the long queues that a
// single random choice makes, and unlike the least loaded of all they do not send
// every simultaneous arrival to one replica. Source: Mitzenmacher, "The Power of
// Two Choices in Randomized Load Balancing", 2001.
type powerOfTwo struct {
	members []*llmserver.Replica
	intn    func(n int) int
}

// PowerOfTwo is the builder of power of two choices with its own source of
// random numbers below n, which must be safe for concurrent use.
func PowerOfTwo(intn func(n int) int) Builder {
	return func(members []*llmserver.Replica, _ Policy) Policy {
		return &powerOfTwo{members, intn}
	}
}

func powerOfTwoClass(kwargs map[string]any) (Builder, error) {
	return PowerOfTwo(rand.IntN), noArguments("PowerOfTwoChoicesRouter", kwargs)
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
		if rest := p.rest(first, second); len(rest) > 0 {
			yield(Tier{Replicas: rest})
		}
	}
}

// sample draws an available replica other than not, uniformly: by drawing until one
// fits, and after a few misses, when much of the fleet must be down, from those that are left.
func (p *powerOfTwo) sample(not *llmserver.Replica) *llmserver.Replica {
	if len(p.members) == 0 {
		return nil
	}
	for range 4 {
		if r := p.members[p.intn(len(p.members))]; r != not && r.Available() {
			return r
		}
	}
	left := p.rest(not, nil)
	if len(left) == 0 {
		return nil
	}
	return left[p.intn(len(left))]
}

// rest are the available replicas but for two.
func (p *powerOfTwo) rest(a, b *llmserver.Replica) []*llmserver.Replica {
	rest := make([]*llmserver.Replica, 0, len(p.members))
	for _, r := range p.members {
		if r != a && r != b && r.Available() {
			rest = append(rest, r)
		}
	}
	return rest
}
