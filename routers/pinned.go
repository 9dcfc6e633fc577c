package routers

import (
	"iter"

	"berth/llmserver"
)

// rank returns the policy's ranking for p, or the one replica to which p is pinned.
func (g *generation) rank(p *Payload) iter.Seq[Tier] {
	if p.PinnedTo == nil {
		return g.policy.Rank(p)
	}
	return func(yield func(Tier) bool) {
		if only := g.eligible(p); len(only) > 0 && only[0].Available() {
			yield(Tier{Replicas: only})
		}
	}
}

// eligible returns the members that may serve p. The result must not be changed.
func (g *generation) eligible(p *Payload) []*llmserver.Replica {
	if p.PinnedTo == nil {
		return g.members
	}
	i, member := g.index[p.PinnedTo]
	if !member {
		return nil
	}
	return g.members[i : i+1]
}
