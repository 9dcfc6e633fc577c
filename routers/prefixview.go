package routers

import (
	"cmp"
	"math"
	"slices"

	"berth/llmserver"
)

// view is one ranking for one prompt.
type view struct {
	*prefixAffinity
	blocks     chain
	full       bool // no replica has room
	imbalanced bool // loads are too far apart for matches to count
	counts     bool // the match is long enough to count
	best       int  // the member with the least cost when it was ranked, -1 for none
	sorted     []priced
}

// priced is a member with its cost.
type priced struct{ member, cost int }

// look finds how much of the prompt each member knows. The lock is held, and what was found is good
// for as long as it is.
func (v *view) look() {
	longest := v.prefixes.match(v.blocks)
	v.counts = !v.imbalanced && float64(longest) >= v.MatchRate*float64(len(v.blocks))
}

// at is a member's place among equals.
func (v *view) at(member int) int {
	if member < v.first {
		member += len(v.members)
	}
	return member - v.first
}

// cost is what a member costs, in blocks and but for a constant. look comes first.
func (v *view) cost(i int) priced {
	number, cost := v.numbers[i], 0
	if !v.full {
		cost = v.work[number] + v.had(number)
	}
	if v.counts {
		cost -= v.prefixes.worth[number]
	}
	return priced{i, cost}
}

// pick is the first available member in order, -1 if there is none. Of a large fleet few hold any of the prompt: so one walk
// looks at what each has to do, and another one at what those few are worth. look comes first.
func (v *view) pick() (best int) {
	best, least := -1, math.MaxInt
	work, sent, floor := v.work, v.sent, v.floor
	i := v.first
	for range v.members {
		number := v.numbers[i]
		if cost := work[number] + max(sent[number], floor); cost < least && v.members[i].Available() {
			best, least = i, cost
		}
		if i++; i == len(v.members) {
			i = 0
		}
	}
	if !v.counts {
		return best
	}
	for _, number := range v.prefixes.found {
		if int(number) >= len(v.places) || v.places[number] < 0 {
			continue // it came after this policy was built
		}
		c := v.cost(v.places[number])
		if (c.cost < least || c.cost == least && v.at(c.member) < v.at(best)) && v.members[c.member].Available() {
			best, least = c.member, c.cost
		}
	}
	return best
}

// order is all members by cost. It is worked out when it is first needed, which
// is seldom, and kept, so that a second range over the ranking is like the first.
func (v *view) order() []priced {
	if v.sorted == nil {
		v.mu.Lock()
		v.look()
		for i := range v.members {
			v.sorted = append(v.sorted, v.cost((v.first+i)%len(v.members)))
		}
		v.mu.Unlock()
		slices.SortStableFunc(v.sorted, func(a, b priced) int { return cmp.Compare(a.cost, b.cost) })
	}
	return v.sorted
}

// cheapest ranks each replica by itself.
func (v *view) cheapest(yield func(Tier) bool) {
	one := func(i int) bool {
		return !v.members[i].Available() || yield(Tier{Replicas: v.members[i : i+1]})
	}
	if v.best < 0 || !one(v.best) {
		return
	}
	for _, p := range v.order() {
		if p.member != v.best && !one(p.member) {
			return
		}
	}
}

// alike ranks replicas of one cost together.
func (v *view) alike(yield func(Tier) bool) {
	for order := v.order(); len(order) > 0; {
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

// preferred notes how much of the prompt each candidate holds. It is the one that holds the most, the
// chosen among equals; nil if that is too little to count.
func (p *prefixAffinity) preferred(payload *Payload, candidates []Candidate) *llmserver.Replica {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.prefixes.match(payload.Blocks)
	var best *Candidate
	for i := range candidates {
		c := &candidates[i]
		if number, ok := p.index[c.Replica]; ok && c.State != Chosen { // which has learned it by now
			c.Matched = int(p.prefixes.depth[number])
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

// imbalanced tells whether loads are too far apart to look at matches.
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
