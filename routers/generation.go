package routers

import (
	"cmp"
	"slices"
	"time"

	"berth/llmserver"
)

// generation is the membership, policy and limits of a router at one moment. It is immutable once
// published, so one atomic load gives a request a consistent view. A change of a replica's state
// publishes a copy with the same policy: a waiter's ranking is outdated if its generation is
// another pointer than the current one.
type generation struct {
	members     []*llmserver.Replica
	index       map[*llmserver.Replica]int // of members
	notDraining []*llmserver.Replica       // members available, or down or ejected and able to recover
	policy      Policy
	limits      Limits
	closed      bool
}

// serves reports whether requests are sent to a replica.
func (g *generation) serves(r *llmserver.Replica) bool {
	_, member := g.index[r]
	return member && !g.closed
}

// applyPanicThreshold makes ejected replicas eligible again when more than half of the fleet is
// ejected, or when no other replica is up: if so many fail, the cause is rather the traffic or a
// shared dependency, and the rest could not carry the load. The replicas ejected first stay out,
// since they have failed for longest and are probed first. The threshold is Envoy's panic threshold
// at 50 %.
func (g *generation) applyPanicThreshold() {
	type ejected struct {
		*llmserver.Replica
		since time.Duration
	}
	up, all := 0, []ejected(nil)
	for _, m := range g.members {
		if !m.Up() {
			continue
		}
		up++
		if since, open := m.Ejected(); open {
			all = append(all, ejected{m, since})
		}
	}
	slices.SortStableFunc(all, func(a, b ejected) int { return cmp.Compare(a.since, b.since) })
	out := min(len(g.members)/2, up-1)
	for i, e := range all {
		e.AllowEjected(i >= out)
	}
}

// awaitsMembers reports whether p waits for the next member: none of the present ones will serve
// any request.
func (g *generation) awaitsMembers(p *Payload) bool {
	return g.limits.AwaitMembers && len(g.notDraining) == 0 && p.PinnedTo == nil
}

// mayServe reports whether a member serves p now or may later. A down or ejected replica may
// recover: one failed probe must not fail a whole queue.
func (g *generation) mayServe(p *Payload, tried []*llmserver.Replica) bool {
	if p.PinnedTo != nil {
		// tried does not matter: a pinned request that has tried its replica ranks none and does
		// not wait.
		_, member := g.index[p.PinnedTo]
		return member && !p.PinnedTo.Draining()
	}
	return g.awaitsMembers(p) || slices.ContainsFunc(g.notDraining, func(m *llmserver.Replica) bool { return !slices.Contains(tried, m) })
}

// unavailable returns the *UnavailableError for p.
func (g *generation) unavailable(p *Payload, tried []*llmserver.Replica) error {
	members := g.eligible(p)
	e := &UnavailableError{Replicas: len(members)}
	for _, m := range members {
		switch {
		case !m.Available():
			e.Reasons = append(e.Reasons, "replica "+m.Label()+": "+m.DownReason())
		case slices.Contains(tried, m):
			e.Tried++
		}
	}
	return e
}
