package routers

import (
	"cmp"
	"slices"

	"berth/llmserver"
)

// Decision describes how a request got its slot. Hooks.Decided receives the Decision, which is
// valid until the hook returns. Explaining it costs as much as a ranking, paid by the caller of
// Explain only.
type Decision struct {
	Payload *Payload
	Replica *llmserver.Replica
	Rank    int // as Selection.Rank
	Matched int // as Selection.Matched

	selector *selector
}

// Candidate is the state of a replica when a request got its slot.
type Candidate struct {
	Replica *llmserver.Replica
	Rank    int    // of its tier, 1 for the best; 0 if not ranked
	Load    int    // without the request itself
	Matched int    // blocks of the prompt believed to be cached there
	State   string // one of those below
}

// The states of candidates.
const (
	Chosen   = "chosen"
	Free     = "free" // had room, and lost by load or rank
	Full     = "full"
	Down     = "down"
	Ejected  = "ejected"
	Draining = "draining"
	Tried    = "tried" // failed this request before, or was excluded by the caller
	// OverBound is no state but a reason: the policy itself passed over its preferred replica
	// because of the load there.
	OverBound = "over_bound"
)

// Members returns the number of replicas.
func (d Decision) Members() int { return len(d.selector.generation.members) }

// Explain appends up to most replicas to into: the ranked ones, best first, then the others.
// preferred is the replica that the policy ranked above the chosen one, if any, and lost is the
// reason for not using that replica. Both are empty for pinned requests. States are read now, so a
// concurrent change may show.
func (d Decision) Explain(into []Candidate, most int) (all []Candidate, preferred *llmserver.Replica, lost string) {
	s := d.selector
	all = s.candidates(into, most)
	for i := range all {
		r := all[i].Replica
		all[i].Load, all[i].State = r.Load(), s.stateOf(r)
		if r == d.Replica {
			all[i].Load, all[i].State, all[i].Matched = max(0, all[i].Load-1), Chosen, d.Matched
		}
	}
	if p, ok := s.generation.policy.(Introspector); ok && s.payload.PinnedTo == nil {
		preferred = p.Preferred(s.payload, all)
	}
	if preferred == nil && d.Rank > 1 && len(all) > 0 {
		preferred = all[0].Replica
	}
	if preferred == nil || preferred == d.Replica {
		return all, nil, ""
	}
	if lost = s.stateOf(preferred); lost == Free {
		lost = OverBound
		if s.waiter != nil || slices.ContainsFunc(all, func(a Candidate) bool { return a.Replica == preferred && a.Rank == 1 }) {
			lost = Full // at the time of the ranking
		}
	}
	return all, preferred, lost
}

// candidates appends up to most replicas by rank. The ranking of a request that has waited is in
// the waiter, which no other goroutine changes once the wait is finished; otherwise the ranking is
// ranged over again.
func (s *selector) candidates(all []Candidate, most int) []Candidate {
	if w := s.waiter; w != nil {
		for i, r := range w.members {
			all = append(all, Candidate{Replica: r, Rank: int(w.tiers[i])})
		}
		slices.SortStableFunc(all, func(a, b Candidate) int { return cmp.Compare(uint(a.Rank-1), uint(b.Rank-1)) })
		return all[:min(len(all), most)]
	}
	s.explainState = explainState{all: all, most: most}
	s.ranking(s.collect)
	all, s.explainState = s.all, explainState{}
	for _, r := range s.generation.members {
		if len(all) == most {
			break
		}
		if !slices.ContainsFunc(all, func(a Candidate) bool { return a.Replica == r }) {
			all = append(all, Candidate{Replica: r})
		}
	}
	return all
}

// explainState is the state of a pass over the ranking that collects candidates.
type explainState struct {
	all      []Candidate
	most     int
	position int // rank of the current tier
}

// collectTier appends the replicas of a tier. False ends the pass, when there are enough.
func (s *selector) collectTier(tier Tier) bool {
	s.position++
	for _, r := range tier.Replicas {
		if len(s.all) == s.most {
			return false
		}
		s.all = append(s.all, Candidate{Replica: r, Rank: s.position})
	}
	return true
}

// stateOf returns the reason why a replica cannot be chosen, or Free.
func (s *selector) stateOf(r *llmserver.Replica) string {
	switch {
	case slices.Contains(s.exclude, r):
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
