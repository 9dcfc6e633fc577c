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

// The rules of other routers with their defaults, for comparison. They remember every block ever
// sent to a replica and ignore evictions by engines.

// state is the input of a rule for one replica.
type state struct {
	replica *llmserver.Replica
	load    int
	matched int // leading blocks of the prompt sent to the replica before
}

// A rule scores replicas for a prompt of a number of blocks; the highest score wins.
type rule func(states []state, blocks int) (scores []float64)

// A rulePolicy ranks replicas by the scores of a rule.
type rulePolicy struct {
	rule    rule
	members []*llmserver.Replica
	*sentBlocks
}

// sentBlocks records which replicas each block was sent to.
type sentBlocks struct {
	bits map[*llmserver.Replica]int // the bit of a replica
	sent map[uint64][]uint64        // by block, a bit set of replicas
}

func baseline(rule rule) func(*rand.Rand, *Options, int) routers.Builder {
	return func(*rand.Rand, *Options, int) routers.Builder {
		m := &sentBlocks{bits: make(map[*llmserver.Replica]int), sent: make(map[uint64][]uint64)}
		return func(members []*llmserver.Replica, _ routers.Policy) routers.Policy {
			for _, r := range members {
				if _, ok := m.bits[r]; !ok {
					m.bits[r] = len(m.bits)
				}
			}
			return &rulePolicy{rule, members, m}
		}
	}
}

func (s *rulePolicy) Rank(p *routers.Payload) iter.Seq[routers.Tier] {
	matched := s.matches(p.Blocks)
	var states []state
	for _, r := range s.members {
		if r.Available() {
			states = append(states, state{r, r.Load(), matched[s.bits[r]]})
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

// matches returns, by bit of the replica, the number of leading blocks sent to each replica before.
func (m *sentBlocks) matches(blocks []uint64) []int {
	matched := make([]int, len(m.bits))
	for bit := range matched {
		matched[bit] = -1
	}
	open := len(matched)
	for i, hash := range blocks {
		set := m.sent[hash]
		for bit := range matched {
			if matched[bit] < 0 && (bit/64 >= len(set) || set[bit/64]>>(bit%64)&1 == 0) {
				matched[bit] = i
				open--
			}
		}
		if open == 0 {
			break
		}
	}
	for bit := range matched {
		if matched[bit] < 0 {
			matched[bit] = len(blocks)
		}
	}
	return matched
}

// Reserved records the blocks of a prompt as sent to r.
func (s *rulePolicy) Reserved(p *routers.Payload, r *llmserver.Replica) (int, func(routers.Outcome)) {
	bit := s.bits[r]
	for _, hash := range p.Blocks {
		set := s.sent[hash]
		if need := len(s.bits)/64 + 1; len(set) < need {
			set = append(set, make([]uint64, need-len(set))...)
			s.sent[hash] = set
		}
		set[bit/64] |= 1 << (bit % 64)
	}
	return 0, nil
}

// leastRequests prefers the lowest load.
func leastRequests(states []state, _ int) []float64 {
	scores := make([]float64, len(states))
	for i, s := range states {
		scores[i] = -float64(s.load)
	}
	return scores
}

// longestMatch prefers the longest match, at any load.
func longestMatch(states []state, _ int) []float64 {
	scores := make([]float64, len(states))
	for i, s := range states {
		scores[i] = float64(s.matched)
	}
	return scores
}

// tree is the rule of SGLang's router and vllm-router with their defaults: the longest match if
// more than 0.3 of the prompt match, else the lowest load. The lowest load also wins if loads
// differ by more than 64 and by a factor of more than 1.5.
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

// scoredBlocks is the rule of llm-d's scheduler: 3 times the match rate, plus 2 times the distance
// of the load from the highest load, relative to the range of loads.
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

// random ranks the replicas in random order.
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

// chwbl is KubeAI's rule: consistent hashing with bounded load, keyed by the start of the prompt.
// Replicas above the bound are skipped; if all are above, the ring is walked without the bound.
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
