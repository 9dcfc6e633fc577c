package routers

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"berth/llmserver"
)

func TestPolicyLookupUsesTheLastPartOfTheClass(t *testing.T) {
	for _, class := range []string{
		"", "RoundRobinRouter", "PowerOfTwoChoicesRouter", "PowerOfTwoChoicesRequestRouter",
		"ray.serve.llm.request_router.RoundRobinRouter", "ray.serve.request_router:PowerOfTwoChoicesRequestRouter",
	} {
		if build, err := Lookup(class, nil); err != nil || build == nil {
			t.Errorf("Lookup(%q) = %v", class, err)
		}
	}
	for _, c := range []struct {
		class  string
		kwargs map[string]any
		says   []string
	}{
		{"my.Router", nil, []string{`"Router"`, "PowerOfTwoChoicesRouter", "RoundRobinRouter"}},
		{"RoundRobinRouter", map[string]any{"b": 1, "a": 2}, []string{"RoundRobinRouter takes no arguments", "a, b"}},
		{"PowerOfTwoChoicesRouter", map[string]any{"x": nil}, []string{"PowerOfTwoChoicesRouter takes no arguments", "x"}},
	} {
		_, err := Lookup(c.class, c.kwargs)
		if err == nil {
			t.Errorf("Lookup(%q, %v) succeeded", c.class, c.kwargs)
			continue
		}
		for _, part := range c.says {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not say %q", err, part)
			}
		}
	}
}

func TestRoundRobinIsEven(t *testing.T) {
	f := newFleet(t, 1000, 1000, 1000)
	r := New(f.replicas, newRoundRobin, roomy, Hooks{})
	var held []*Selection
	for range 300 {
		held = append(held, mustChoose(t, r, ""))
	}
	for _, m := range f.replicas {
		if m.Load() != 100 {
			t.Errorf("replica %s has %d of 300", m.ID(), m.Load())
		}
	}
	for _, sel := range held {
		sel.Release()
	}
	f.wantIdle(t)
}

func TestRoundRobinContinuesAfterAMembershipChange(t *testing.T) {
	f := newFleet(t, 9, 9, 9, 9)
	first := func(p Policy) string { return rankAll(p, &Payload{})[0].ID() }
	var got, want string
	policy := newRoundRobin(f.replicas, nil)
	start := strings.Index("abcd", first(policy))
	for i := range 12 {
		policy = newRoundRobin(f.replicas, policy)
		got += first(policy)
		want += string("abcd"[(start+1+i)%4])
	}
	if got != want {
		t.Errorf("over twelve memberships it began with %s; want %s", got, want)
	}
}

// oneByOne draws what it is told to.
func oneByOne(draws ...int) func(int) int {
	return func(int) int {
		next := draws[0]
		draws = draws[1:]
		return next
	}
}

func TestPowerOfTwoRanksTwoDistinctSamplesBeforeTheRest(t *testing.T) {
	f := newFleet(t, 9, 9, 9, 9)
	f.replicas[2].Drain()
	policy := PowerOfTwo(oneByOne(2, 3, 3, 2, 1))(f.replicas, nil)
	var tiers []string
	for tier := range policy.Rank(&Payload{}) {
		names := ""
		for _, r := range tier.Replicas {
			names += r.ID()
		}
		tiers = append(tiers, names)
	}
	if want := []string{"db", "a"}; !slices.Equal(tiers, want) {
		t.Errorf("the tiers are %q; want %q", tiers, want)
	}
}

// With distinct loads, the replica that is kth of n from the lightest is chosen in
// 2(n-k)/(n(n-1)) of all cases; k counts from 1.
func TestPowerOfTwoPicksTheLessLoadedOfTwoUniformSamples(t *testing.T) {
	const n, draws = 5, 20000
	f := newFleet(t, slices.Repeat([]int{100}, n)...)
	direct := New(f.replicas, newByText, roomy, Hooks{})
	var held []*Selection
	for i := range n {
		for range 2 * i {
			held = append(held, mustChoose(t, direct, string(rune('a'+i))))
		}
	}
	for _, down := range []int{0, 1} { // also where some samples are in vain
		members := slices.Clone(f.replicas)
		for range down {
			dead := newFleet(t, 1).replicas[0]
			dead.Drain()
			members = append(members, dead, dead, dead, dead)
		}
		random := rand.New(rand.NewPCG(1, 2))
		r := New(members, PowerOfTwo(random.IntN), roomy, Hooks{})
		chosen := make(map[*llmserver.Replica]int)
		for range draws {
			sel := mustChoose(t, r, "")
			chosen[sel.Replica()]++
			serve(t, sel)
		}
		for i, m := range f.replicas {
			want := draws * 2 * (n - 1 - i) / (n * (n - 1))
			if got := chosen[m]; got < want*93/100 || got > want*107/100 {
				t.Errorf("replica %s, with a load of %d, was chosen %d times; want about %d", m.ID(), m.Load(), got, want)
			}
		}
	}
	for _, sel := range held {
		sel.Release()
	}
}
