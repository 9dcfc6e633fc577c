package replay

import (
	"cmp"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"

	"berth/llmserver"
	"berth/routers"
)

// The rules of other routers, as they decide by default. They are for comparison, know every block
// that they ever sent to a replica, and take no account of how long an engine keeps it.

// state is what a rule sees of one replica.
type state struct {
	replica *llmserver.Replica
	load    int
	matched int // leading blocks of the prompt that were sent to it before
}

// rule scores replicas for a prompt of so many blocks; the highest is the best.
type rule func(states []state, blocks int) (scores []float64)

// scored is a policy by a rule.
type scored struct {
	rule    rule
	members []*llmserver.Replica
	*memory
}

// memory is which replicas each block was sent to, by place in a set of bits.
type memory struct {
	places map[*llmserver.Replica]int
	sent   map[uint64][]uint64
}

func baseline(rule rule) func(*rand.Rand, *Options, int) routers.Builder {
	return func(*rand.Rand, *Options, int) routers.Builder {
		m := &memory{places: make(map[*llmserver.Replica]int), sent: make(map[uint64][]uint64)}
		return func(members []*llmserver.Replica, _ routers.Policy) routers.Policy {
			for _, r := range members {
				if _, ok := m.places[r]; !ok {
					m.places[r] = len(m.places)
				}
			}
			return &scored{rule, members, m}
		}
	}
}

func (s *scored) Rank(p *routers.Payload) iter.Seq[routers.Tier] {
	matched := s.matches(p.Blocks)
	var states []state
	for _, r := range s.members {
		if r.Available() {
			states = append(states, state{r, r.Load(), matched[s.places[r]]})
		}
	}
	scores := s.rule(states, len(p.Blocks))
	order := make([]int, len(states))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	return func(yield func(routers.Tier) bool) {
		for left := order; len(left) > 0; {
			var tier routers.Tier
			best := scores[left[0]]
			for len(left) > 0 && scores[left[0]] == best {
				tier.Replicas = append(tier.Replicas, states[left[0]].replica)
				left = left[1:]
			}
			if !yield(tier) {
				return
			}
		}
	}
}

// matches is how many leading blocks each replica was sent, by place.
func (m *memory) matches(blocks []uint64) []int {
	matched := make([]int, len(m.places))
	for place := range matched {
		matched[place] = -1
	}
	open := len(matched)
	for i, hash := range blocks {
		set := m.sent[hash]
		for place := range matched {
			if matched[place] < 0 && (place/64 >= len(set) || set[place/64]>>(place%64)&1 == 0) {
				matched[place] = i
				open--
			}
		}
		if open == 0 {
			break
		}
	}
	for place := range matched {
		if matched[place] < 0 {
			matched[place] = len(blocks)
		}
	}
	return matched
}

// Reserved remembers where a prompt goes.
func (s *scored) Reserved(p *routers.Payload, r *llmserver.Replica) (int, func(routers.Outcome)) {
	place := s.places[r]
	for _, hash := range p.Blocks {
		set := s.sent[hash]
		if need := len(s.places)/64 + 1; len(set) < need {
			set = append(set, make([]uint64, need-len(set))...)
			s.sent[hash] = set
		}
		set[place/64] |= 1 << (place % 64)
	}
	return 0, nil
}

func leastRequests(states []state, _ int) []float64 {
	scores := make([]float64, len(states))
	for i, s := range states {
		scores[i] = -float64(s.load)
	}
	return scores
}

// longestMatch has no bound.
func longestMatch(states []state, _ int) []float64 {
	scores := make([]float64, len(states))
	for i, s := range states {
		scores[i] = float64(s.matched)
	}
	return scores
}

// tree is the rule of SGLang's router and vllm-router with their defaults: the longest match where
// more than 0.3 match, else the least load; the least load, too, where loads are more than 64 apart
// and by more than 1.5 times.
func tree(states []state, blocks int) []float64 {
	least, most, longest := math.MaxInt, 0, 0
	for _, s := range states {
		least, most, longest = min(least, s.load), max(most, s.load), max(longest, s.matched)
	}
	imbalanced := most-least > 64 && float64(most) > 1.5*float64(least)
	if imbalanced || float64(longest) <= 0.3*float64(blocks) {
		return leastRequests(states, blocks)
	}
	scores := leastRequests(states, blocks)
	for i, s := range states {
		if s.matched == longest {
			scores[i] = 1
		}
	}
	return scores
}

// scoredBlocks is the rule of llm-d's scheduler: three parts of the match
// rate and two of how far the load is from the highest, over the range of loads.
func scoredBlocks(states []state, blocks int) []float64 {
	least, most := math.MaxInt, 0
	for _, s := range states {
		least, most = min(least, s.load), max(most, s.load)
	}
	scores := make([]float64, len(states))
	for i, s := range states {
		scores[i] = 3*ratio(float64(s.matched), float64(blocks)) + 2
		if most > least {
			scores[i] -= 2 * float64(s.load-least) / float64(most-least)
		}
	}
	return scores
}

// random ranks one replica, then all others.
type random struct {
	members []*llmserver.Replica
	numbers *rand.Rand
}

func newRandom(numbers *rand.Rand) routers.Builder {
	return func(members []*llmserver.Replica, _ routers.Policy) routers.Policy { return &random{members, numbers} }
}

func (r *random) Rank(*routers.Payload) iter.Seq[routers.Tier] {
	order := r.numbers.Perm(len(r.members))
	return func(yield func(routers.Tier) bool) {
		for _, i := range order {
			if r.members[i].Available() && !yield(routers.Tier{Replicas: r.members[i : i+1]}) {
				return
			}
		}
	}
}

// chwbl is KubeAI's rule: a ring with bounded load, the key the beginning of the prompt. Who is at the bound is
// passed by; where all are, the walk starts anew without it.
type chwbl struct {
	routers.Policy // the ring
	members        []*llmserver.Replica
}

func newCHWBL(numbers *rand.Rand) routers.Builder {
	build := routers.ConsistentHash(routers.HashOptions{VirtualNodes: 256, Fallbacks: math.MaxInt32}, numbers.Uint64)
	return func(members []*llmserver.Replica, prev routers.Policy) routers.Policy {
		if prev, ok := prev.(chwbl); ok {
			return chwbl{build(members, prev.Policy), members}
		}
		return chwbl{build(members, nil), members}
	}
}

func (c chwbl) Rank(p *routers.Payload) iter.Seq[routers.Tier] {
	var key routers.Payload
	if len(p.Blocks) > 0 {
		key.SessionID = strconv.FormatUint(p.Blocks[0], 16)
	}
	total := 1
	for _, r := range c.members {
		total += r.Load()
	}
	bound := 1.25 * float64(total) / float64(len(c.members))
	var under, over []routers.Tier
	for tier := range c.Policy.Rank(&key) {
		if float64(tier.Replicas[0].Load()) <= bound {
			under = append(under, tier)
		} else {
			over = append(over, tier)
		}
	}
	return slices.Values(append(under, over...))
}
