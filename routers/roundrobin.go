package routers

import (
	"iter"
	"math/rand/v2"
	"sync/atomic"

	"berth/llmserver"
)

// roundRobin ranks each replica by itself, starting one further for every
// request. It looks at no load: it spreads requests evenly where they cost alike.
type roundRobin struct {
	members []*llmserver.Replica
	next    *atomic.Uint64 // survives membership changes
}

func roundRobinClass(kwargs map[string]any) (Builder, error) {
	return newRoundRobin, noArguments("RoundRobinRouter", kwargs)
}

func newRoundRobin(members []*llmserver.Replica, prev Policy) Policy {
	return RoundRobin(rand.Uint64()>>32)(members, prev) // several ingresses do not start in step
}

// RoundRobin is the builder of a round robin that begins after start.
func RoundRobin(start uint64) Builder {
	return func(members []*llmserver.Replica, prev Policy) Policy {
		if prev, ok := prev.(*roundRobin); ok {
			return &roundRobin{members, prev.next}
		}
		next := new(atomic.Uint64)
		next.Store(start)
		return &roundRobin{members, next}
	}
}

func (rr *roundRobin) Rank(*Payload) iter.Seq[Tier] {
	n := uint64(len(rr.members))
	start := rr.next.Add(1)
	return func(yield func(Tier) bool) {
		for i := range n {
			at := (start + i) % n
			if rr.members[at].Available() && !yield(Tier{Replicas: rr.members[at : at+1]}) {
				return
			}
		}
	}
}
