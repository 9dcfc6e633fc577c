package routers

import (
	"cmp"
	"slices"

	"berth/llmserver"
)

// Decision is how a request came by its slot, for the hook that it is given to and not beyond its
// return. What it costs to be explained is paid by who asks.
type Decision struct {
	Payload *Payload
	Replica *llmserver.Replica
	Rank    int // as Selection.Rank
	Matched int // as Selection.Matched

	choice *choice
}

// Candidate is a replica as it was when a request got its slot.
type Candidate struct {
	Replica *llmserver.Replica
	Rank    int    // of its tier, 1 for the best; 0 if it was not ranked
	Load    int    // without the request itself
	Matched int    // blocks of the prompt that it was held to know
	State   string // one of those below
}

// What kept a candidate from being chosen.
const (
	Chosen   = "chosen"
	Free     = "free" // it could have been, had load or ranking been otherwise
	Full     = "full"
	Down     = "down"
	Ejected  = "ejected"
	Draining = "draining"
	Tried    = "tried" // it failed this request before
	// OverBound is no state: the policy itself passed over the replica that it prefers, because of the
	// load there.
	OverBound = "over_bound"
)

// Members is how many replicas there are.
func (d Decision) Members() int { return len(d.choice.generation.members) }

// Explain appends up to most replicas to into: those that were ranked, the best first, then the others.
// If the policy would rather have had another one than the chosen, that is preferred, and lost says why
// it was not to be; one that is bound to a replica would not. What it reads is as of now, so in a race it may be off by a moment.
func (d Decision) Explain(into []Candidate, most int) (all []Candidate, preferred *llmserver.Replica, lost string) {
	c := d.choice
	all = c.candidates(into, most)
	for i := range all {
		r := all[i].Replica
		all[i].Load, all[i].State = r.Load(), c.state(r)
		if r == d.Replica {
			all[i].Load, all[i].State, all[i].Matched = max(0, all[i].Load-1), Chosen, d.Matched
		}
	}
	if p, ok := c.generation.policy.(Introspector); ok && c.payload.PinnedTo == nil {
		preferred = p.Preferred(c.payload, all)
	}
	if preferred == nil && d.Rank > 1 && len(all) > 0 {
		preferred = all[0].Replica
	}
	if preferred == nil || preferred == d.Replica {
		return all, nil, ""
	}
	if lost = c.state(preferred); lost == Free {
		lost = OverBound
		if c.waiter != nil || slices.ContainsFunc(all, func(a Candidate) bool { return a.Replica == preferred && a.Rank == 1 }) {
			lost = Full // by now it is not any more
		}
	}
	return all, preferred, lost
}

// candidates appends up to most replicas by rank.
func (c *choice) candidates(all []Candidate, most int) []Candidate {
	if w := c.waiter; w != nil {
		for i, r := range w.members {
			all = append(all, Candidate{Replica: r, Rank: int(w.tiers[i])})
		}
		slices.SortStableFunc(all, func(a, b Candidate) int { return cmp.Compare(uint(a.Rank-1), uint(b.Rank-1)) })
		return all[:min(len(all), most)]
	}
	c.listing = listing{all: all, most: most}
	c.ranking(c.list)
	all, c.listing = c.all, listing{}
	if len(all) == most {
		return all
	}
	for _, r := range c.generation.members {
		if len(all) == most {
			break
		}
		if !slices.ContainsFunc(all, func(a Candidate) bool { return a.Replica == r }) {
			all = append(all, Candidate{Replica: r})
		}
	}
	return all
}

// listing is what a walk down the ranking finds to be explained.
type listing struct {
	all      []Candidate
	most     int
	position int // the rank of the tier
}

// enlist appends the replicas of a tier; false when there are enough.
func (c *choice) enlist(tier Tier) bool {
	c.position++
	for _, r := range tier.Replicas {
		if len(c.all) == c.most {
			return false
		}
		c.all = append(c.all, Candidate{Replica: r, Rank: c.position})
	}
	return true
}

// state is what keeps a replica from being chosen.
func (c *choice) state(r *llmserver.Replica) string {
	switch {
	case slices.Contains(c.exclude, r):
		return Tried
	case r.Draining():
		return Draining
	case !r.Up():
		return Down
	case !r.Available():
		return Ejected
	case !r.HasRoom():
		return Full
	default:
		return Free
	}
}
