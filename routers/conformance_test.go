package routers

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"berth/llmserver"
)

// conforming are the policies that the suite holds to the contract of Policy, with
// their arguments.
var conforming = []struct {
	class  string
	kwargs map[string]any
	// ranks is the least number of replicas in a ranking; 0: all that are available.
	ranks int
}{
	{class: "RoundRobinRouter"},
	{class: "PowerOfTwoChoicesRouter"},
	{class: "ConsistentHashRouter", ranks: 3},
	{class: "ConsistentHashRouter", kwargs: map[string]any{"max_load_factor": 1.25}},
	{class: "PrefixCacheAffinityRouter"},
}

// onEveryPolicy runs f for each policy, over fleets of several sizes.
func onEveryPolicy(t *testing.T, f func(t *testing.T, fleet *fleet, build Builder, ranks int)) {
	for _, c := range conforming {
		build, err := Lookup(c.class, c.kwargs)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{0, 1, 2, 3, 10, 100} {
			t.Run(fmt.Sprint(c.class, "/", n), func(t *testing.T) {
				f(t, newFleet(t, slices.Repeat([]int{4}, n)...), build, c.ranks)
			})
		}
	}
}

// payloads returns requests of all kinds.
func payloads() []*Payload {
	all := []*Payload{{}, {RequestID: "a", Text: []byte(`[]`)}}
	for i := range 50 {
		p := &Payload{RequestID: fmt.Sprint(i), Model: "m", Text: fmt.Appendf(nil, "message %d", i)}
		if i%2 == 0 {
			p.SessionID, p.Blocks = fmt.Sprint("session ", i), long(i%10, 1+i)
		}
		if i%4 == 0 {
			p.Adapter = "adapter"
		}
		all = append(all, p)
	}
	return all
}

// rankAll returns a ranking as a flat list.
func rankAll(p Policy, payload *Payload) (replicas []*llmserver.Replica) {
	for tier := range p.Rank(payload) {
		replicas = append(replicas, tier.Replicas...)
	}
	return replicas
}

// learnServed reports to a policy that learns that the replica has served the request.
func learnServed(p Policy, payload *Payload, r *llmserver.Replica) {
	l, ok := p.(Learner)
	if !ok {
		return
	}
	if _, settled := l.Reserved(payload, r); settled != nil {
		settled(Outcome{Served: true})
	}
}

// checkRanking checks one ranking against the contract; available are the replicas that may be in
// it.
func checkRanking(t *testing.T, got, available []*llmserver.Replica, ranks int) {
	seen := make(map[*llmserver.Replica]bool)
	for _, r := range got {
		if seen[r] {
			t.Errorf("replica %s is ranked twice", r.ID())
		}
		if !slices.Contains(available, r) {
			t.Errorf("replica %s is ranked although it is not available", r.ID())
		}
		seen[r] = true
	}
	if ranks == 0 {
		ranks = len(available)
	}
	if want := min(ranks, len(available)); len(got) < want {
		t.Errorf("%d replicas are ranked; want %d", len(got), want)
	}
}

func TestPolicyRanksAvailableReplicasOnce(t *testing.T) {
	onEveryPolicy(t, func(t *testing.T, fleet *fleet, build Builder, ranks int) {
		policy := build(fleet.replicas, nil)
		available := slices.Clone(fleet.replicas)
		for {
			for _, p := range payloads() {
				got := rankAll(policy, p)
				checkRanking(t, got, available, ranks)
				if len(got) > 0 {
					learnServed(policy, p, got[len(got)-1]) // not the best one, so that the policy learns something
				}
			}
			if len(available) == 0 {
				return
			}
			for range (len(available) + 1) / 2 { // until none is left
				available[len(available)-1].Drain()
				available = available[:len(available)-1]
			}
		}
	})
}

func TestPolicyRanksTheSameWhenRangedOverTwice(t *testing.T) {
	onEveryPolicy(t, func(t *testing.T, fleet *fleet, build Builder, _ int) {
		policy := build(fleet.replicas, nil)
		for _, p := range payloads() {
			seq := policy.Rank(p)
			var first, second [][]*llmserver.Replica
			seq(func(Tier) bool { return false }) // an early stop must not change the ranking
			for tier := range seq {
				first = append(first, slices.Clone(tier.Replicas))
			}
			for tier := range seq {
				second = append(second, slices.Clone(tier.Replicas))
			}
			if !slices.EqualFunc(first, second, slices.Equal) {
				t.Fatal("the second range yields other tiers")
			}
		}
	})
}

func TestPolicyMayBeCalledConcurrently(t *testing.T) {
	onEveryPolicy(t, func(t *testing.T, fleet *fleet, build Builder, ranks int) {
		policy := build(fleet.replicas, nil)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for _, p := range payloads() {
					checkRanking(t, rankAll(policy, p), fleet.replicas, ranks)
				}
			})
		}
		all.Wait()
	})
}

func TestPolicyReachesEveryReplica(t *testing.T) {
	onEveryPolicy(t, func(t *testing.T, fleet *fleet, build Builder, _ int) {
		policy := build(fleet.replicas, nil)
		first := make(map[*llmserver.Replica]bool)
		for i := range 100 * len(fleet.replicas) {
			p := &Payload{RequestID: fmt.Sprint(i), Text: fmt.Append(nil, i)}
			if i%2 == 0 {
				p.SessionID, p.Blocks = fmt.Sprint(i), long(i, 3)
			}
			for tier := range policy.Rank(p) {
				for _, r := range tier.Replicas {
					first[r] = true
				}
				learnServed(policy, p, tier.Replicas[0])
				break
			}
		}
		if len(first) != len(fleet.replicas) {
			t.Errorf("%d of %d replicas were in a best tier", len(first), len(fleet.replicas))
		}
	})
}

func TestPolicyTakesOverFromAnyOther(t *testing.T) {
	for _, old := range conforming {
		onEveryPolicy(t, func(t *testing.T, fleet *fleet, build Builder, ranks int) {
			before, err := Lookup(old.class, old.kwargs)
			if err != nil {
				t.Fatal(err)
			}
			half := fleet.replicas[len(fleet.replicas)/2:]
			policy := build(half, before(fleet.replicas, nil))
			for _, p := range payloads() {
				checkRanking(t, rankAll(policy, p), half, ranks)
			}
		})
	}
}
