package routers

import (
	"cmp"
	"math"
	"slices"

	"berth/llmserver"
)

// prefixRanking is one ranking of one prompt. The goroutine that called Rank owns the ranking.
type prefixRanking struct {
	*prefixAffinity
	blocks     []uint64
	full       bool // no replica has room
	imbalanced bool // loads differ too much for matches to count
	counts     bool // the match is long enough to count
	best       int  // the cheapest available member at the time of Rank, -1 for none
	sorted     []scoredMember
}

// scoredMember is the index of a member with its cost in blocks.
type scoredMember struct{ member, cost int }

// match looks the prompt up in the index. learned.mu is held, and the results are valid until the
// mutex is released.
func (v *prefixRanking) match() {
	longest := v.prefixes.Match(v.blocks)
	v.counts = !v.imbalanced && float64(longest) >= v.MatchRate*float64(len(v.blocks))
}

// offset returns a member's position in the order among equals.
func (v *prefixRanking) offset(member int) int {
	if member < v.first {
		member += len(v.members)
	}
	return member - v.first
}

// score returns the cost of a member, up to a constant. The caller holds learned.mu and has called
// match.
func (v *prefixRanking) score(i int) scoredMember {
	number, cost := v.numbers[i], 0
	if !v.full {
		cost = v.work[number] + v.sentBlocks(number)
	}
	if v.counts {
		cost -= v.prefixes.MatchedValue(number)
	}
	return scoredMember{i, cost}
}

// cheapest returns the first available member in the order of sort, -1 if there is none. In a large
// fleet few members have any of the prompt, so one pass compares the costs without matches, and
// another one the costs of the members with a match. The caller holds learned.mu and has called
// match.
//
// The exception is a member that was added, restarted or hanging and has got no prompt since, if all others
// are at work: it gets the prompt, and with it the beginning that most prompts share. By cost alone
// a fleet with little load would never use it.
func (v *prefixRanking) cheapest() (best int) {
	best, least := -1, math.MaxInt
	idle, idleMembers := -1, 0
	work, sent, floor := v.work, v.sent, v.sentFloor
	i := v.first
	for range v.members {
		number := v.numbers[i]
		if cost := work[number] + max(sent[number], floor); (cost < least || work[number] == 0) && v.members[i].Available() {
			if cost < least {
				best, least = i, cost
			}
			if work[number] == 0 {
				idle = i
				idleMembers++
			}
		}
		if i++; i == len(v.members) {
			i = 0
		}
	}
	if !v.counts {
		return best
	}
	if idleMembers == 1 && v.fresh[v.numbers[idle]] {
		return idle
	}
	for _, number := range v.prefixes.Matched() {
		if int(number) >= len(v.positions) || v.positions[number] < 0 {
			continue // added after this policy was built
		}
		c := v.score(v.positions[number])
		if (c.cost < least || c.cost == least && v.offset(c.member) < v.offset(best)) && v.members[c.member].Available() {
			best, least = c.member, c.cost
		}
	}
	return best
}

// sort returns all members by cost. The first replica mostly has room, so sorting is done on
// demand; the result is kept, so a second range over the ranking yields the same order.
func (v *prefixRanking) sort() []scoredMember {
	if v.sorted == nil {
		v.mu.Lock()
		v.match()
		for i := range v.members {
			v.sorted = append(v.sorted, v.score((v.first+i)%len(v.members)))
		}
		v.mu.Unlock()
		slices.SortStableFunc(v.sorted, func(a, b scoredMember) int { return cmp.Compare(a.cost, b.cost) })
	}
	return v.sorted
}

// bestFirst yields each replica as a tier of its own.
func (v *prefixRanking) bestFirst(yield func(Tier) bool) {
	one := func(i int) bool {
		return !v.members[i].Available() || yield(Tier{Replicas: v.members[i : i+1]})
	}
	if v.best < 0 || !one(v.best) {
		return
	}
	for _, s := range v.sort() {
		if s.member != v.best && !one(s.member) {
			return
		}
	}
}

// tiesTogether yields replicas of equal cost as one tier.
func (v *prefixRanking) tiesTogether(yield func(Tier) bool) {
	for order := v.sort(); len(order) > 0; {
		var tier Tier
		cost := order[0].cost
		for len(order) > 0 && order[0].cost == cost {
			if r := v.members[order[0].member]; r.Available() {
				tier.Replicas = append(tier.Replicas, r)
			}
			order = order[1:]
		}
		if len(tier.Replicas) > 0 && !yield(tier) {
			return
		}
	}
}

// Preferred implements Introspector: the candidate with the longest match, the chosen one among
// equals, nil if no match is long enough to count. Preferred also sets Matched of the candidates.
func (p *prefixAffinity) Preferred(payload *Payload, candidates []Candidate) *llmserver.Replica {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.prefixes.Match(payload.Blocks)
	var best *Candidate
	for i := range candidates {
		c := &candidates[i]
		if h, ok := p.holders[c.Replica]; ok && c.State != Chosen { // the chosen one's record includes this prompt by now
			c.Matched = p.prefixes.MatchedBlocks(h.Number())
		}
		if best == nil || c.Matched > best.Matched || c.Matched == best.Matched && c.State == Chosen {
			best = c
		}
	}
	if best == nil || best.Matched == 0 || float64(best.Matched) < p.MatchRate*float64(len(payload.Blocks)) {
		return nil
	}
	return best.Replica
}

// imbalanced reports whether loads differ too much for matches to count.
func (p *prefixAffinity) imbalanced() bool {
	if math.IsInf(p.Imbalance, 1) {
		return false
	}
	least, most := math.MaxInt, 0
	for _, r := range p.members {
		if r.Available() {
			least, most = min(least, r.Load()), max(most, r.Load())
		}
	}
	return float64(most-least) > p.Imbalance
}
