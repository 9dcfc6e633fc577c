package routers

import (
	"iter"
	"math/rand/v2"
	"sync/atomic"

	"berth/llmserver"
)

// roundRobin ranks each replica as a tier of its own, rotated by one for every request. Load is
// ignored; the spread is even where requests cost the same.
type roundRobin struct {
	members  []*llmserver.Replica
	requests *atomic.Uint64 // shared by all policies of one router, so that a change does not restart the rotation
}

func roundRobinClass(kwargs map[string]any) (Builder, error) {
	return newRoundRobin, (&arguments{class: "RoundRobinRouter", values: kwargs}).validate()
}

// newRoundRobin starts at a random replica, so that several ingresses do not go in step.
func newRoundRobin(members []*llmserver.Replica, prev Policy) Policy {
	return RoundRobin(rand.Uint64()>>32)(members, prev)
}

// RoundRobin returns the builder of a round robin policy that sends the first request to the member
// after the index start.
func RoundRobin(start uint64) Builder {
	return func(members []*llmserver.Replica, prev Policy) Policy {
		if prev, ok := prev.(*roundRobin); ok {
			return &roundRobin{members, prev.requests}
		}
		requests := new(atomic.Uint64)
		requests.Store(start)
		return &roundRobin{members, requests}
	}
}

func (rr *roundRobin) Rank(*Payload) iter.Seq[Tier] {
	n := uint64(len(rr.members))
	start := rr.requests.Add(1)
	return func(yield func(Tier) bool) {
		for i := range n {
			at := (start + i) % n
			if rr.members[at].Available() && !yield(Tier{Replicas: rr.members[at : at+1]}) {
				return
			}
		}
	}
}
