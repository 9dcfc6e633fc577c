package routers

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"berth/llmserver"
)

// hashed makes a router by consistent hash.
func newHashRouter(f *fleet, o HashOptions) *Router {
	return New(f.replicas, ConsistentHash(o, rand.New(rand.NewPCG(1, 2)).Uint64), roomy, Hooks{})
}

// names are the IDs of replicas, in order.
func names(replicas []*llmserver.Replica) (names string) {
	for _, r := range replicas {
		names += r.ID()
	}
	return names
}

// session chooses for a session what must be had.
func chooseSession(t testing.TB, r *Router, id string) *Selection {
	t.Helper()
	sel, err := r.Choose(t.Context(), &Payload{SessionID: id})
	if err != nil {
		t.Fatal(err)
	}
	return sel
}

func TestConsistentHashKeepsASessionWhateverTheLoad(t *testing.T) {
	f := newFleet(t, 99, 99, 99, 99)
	r := newHashRouter(f, DefaultHashOptions)
	home := chooseSession(t, r, "s").Replica()
	for range 50 {
		if sel := chooseSession(t, r, "s"); sel.Replica() != home {
			t.Fatalf("with a load of %d it went from %s to %s", home.Load(), home.ID(), sel.Replica().ID())
		}
	}
}

func TestConsistentHashFullReplicaUsesUpAFallbackAndAnUnavailableDoesNot(t *testing.T) {
	f := newFleet(t, 1, 1, 1, 1, 1)
	r := newHashRouter(f, DefaultHashOptions)
	ranked := func() string { return names(rankAll(r.Policy(), &Payload{SessionID: "s"})) }
	all := newHashRouter(f, HashOptions{VirtualNodes: 100, Fallbacks: 9})
	walk := rankAll(all.Policy(), &Payload{SessionID: "s"})
	if got, want := ranked(), names(walk[:3]); got != want {
		t.Errorf("five replicas rank %s; want %s", got, want)
	}
	sel := chooseSession(t, r, "s")
	if got, want := ranked(), names(walk[:3]); got != want {
		t.Errorf("with the first full they rank %s; want %s", got, want)
	}
	if next := chooseSession(t, r, "s"); next.Replica() != walk[1] {
		t.Errorf("with the first full it went to %s; want %s", next.Replica().ID(), walk[1].ID())
	}
	sel.Release()
	walk[0].Drain()
	if got, want := ranked(), names(walk[1:4]); got != want {
		t.Errorf("with the first draining they rank %s; want %s", got, want)
	}
}

func TestConsistentHashSpreadsRequestsWithoutASession(t *testing.T) {
	f := newFleet(t, 9999, 9999, 9999, 9999)
	r := newHashRouter(f, DefaultHashOptions)
	for range 4000 {
		mustChoose(t, r, "the same text")
	}
	for _, m := range f.replicas {
		if m.Load() < 600 || m.Load() > 1500 {
			t.Errorf("replica %s has %d of 4000", m.ID(), m.Load())
		}
	}
}

func TestConsistentHashKeepsTheRingWhileIDsAreTheSame(t *testing.T) {
	f := newFleet(t, 1, 1, 1)
	build := ConsistentHash(DefaultHashOptions, rand.Uint64)
	before := build(f.replicas, nil).(*consistentHash)
	turned := slices.Clone(f.replicas)
	slices.Reverse(turned)
	after := build(turned, before).(*consistentHash)
	if before.ring != after.ring {
		t.Error("another order made another ring")
	}
	p := &Payload{SessionID: "s"}
	if got, want := names(rankAll(after, p)), names(rankAll(before, p)); got != want {
		t.Errorf("another order ranks %s; want %s", got, want)
	}
	if fewer := build(turned[:2], before).(*consistentHash); fewer.ring == before.ring {
		t.Error("fewer replicas have the same ring")
	}
	more := ConsistentHash(HashOptions{VirtualNodes: 7}, rand.Uint64)(turned, before).(*consistentHash)
	if len(more.ring.points) != 3*7 {
		t.Errorf("with 7 points each, 3 replicas have %d", len(more.ring.points))
	}
}

func TestBoundedHashNeverExceedsTheBound(t *testing.T) {
	const n, factor = 8, 1.25
	f := newFleet(t, slices.Repeat([]int{1000}, n)...)
	r := newHashRouter(f, HashOptions{VirtualNodes: 100, Fallbacks: 2, MaxLoadFactor: factor})
	random := rand.New(rand.NewPCG(3, 4))
	var held []*Selection
	for i := range 4000 {
		id := fmt.Sprint(i % 300)
		if random.IntN(10) < 3 {
			id = "hot"
		}
		sel := chooseSession(t, r, id)
		held = append(held, sel)
		mean := float64(len(held)) / n
		if load := float64(sel.Replica().Load()); load > max(minBound, math.Ceil(factor*mean)) {
			t.Fatalf("replica %s got to %v with a mean of %v", sel.Replica().ID(), load, mean)
		}
		if len(held) > 20*n {
			j := random.IntN(len(held))
			held[j].Release()
			held = slices.Delete(held, j, j+1)
		}
	}
}

// Requests that are ranked at the same moment all see the same loads; the limit is what holds them.
func TestBoundedHashPassesTheBoundToTheReservation(t *testing.T) {
	f := newFleet(t, slices.Repeat([]int{1000}, 8)...)
	r := newHashRouter(f, HashOptions{VirtualNodes: 100, MaxLoadFactor: 1.25})
	p := &Payload{SessionID: "s"}
	limited := 0
	for tier := range r.Policy().Rank(p) {
		if limited++; tier.Limit != minBound {
			t.Errorf("tier %d has the limit %d; want %d", limited, tier.Limit, minBound)
		}
	}
	if limited != 8 {
		t.Errorf("the walk ends after %d of 8 replicas", limited)
	}
}

func TestBoundedHashKeepsSessionsBelowTheBound(t *testing.T) {
	f := newFleet(t, slices.Repeat([]int{1000}, 8)...)
	bounded := newHashRouter(f, HashOptions{VirtualNodes: 100, Fallbacks: 2, MaxLoadFactor: 1.25})
	free := newHashRouter(f, DefaultHashOptions)
	for i := range 50 {
		p := &Payload{SessionID: fmt.Sprint(i)}
		if got, want := rankAll(bounded.Policy(), p)[0], rankAll(free.Policy(), p)[0]; got != want {
			t.Errorf("session %d goes to %s in an idle fleet; want %s", i, got.ID(), want.ID())
		}
	}
	// Few requests are no imbalance.
	home := chooseSession(t, bounded, "s").Replica()
	for range minBound - 1 {
		if sel := chooseSession(t, bounded, "s"); sel.Replica() != home {
			t.Errorf("with %d requests it went elsewhere", home.Load())
		}
	}
	if sel := chooseSession(t, bounded, "s"); sel.Replica() == home {
		t.Errorf("it stayed with %d requests although no other replica has any", home.Load())
	}
}

func TestBoundedHashHotSessionDoesNotDisplaceOthers(t *testing.T) {
	f := newFleet(t, 1000, 1000, 1000, 1000)
	r := newHashRouter(f, HashOptions{VirtualNodes: 100, MaxLoadFactor: 1.5})
	free := newHashRouter(f, DefaultHashOptions)
	var held []*Selection
	for range 80 {
		held = append(held, chooseSession(t, r, "hot"))
	}
	for _, m := range f.replicas {
		if m.Load() < 18 || m.Load() > 22 { // the bound is 30
			t.Errorf("of 80 requests of one session replica %s has %d", m.ID(), m.Load())
		}
	}
	for i := range 12 {
		id := fmt.Sprint(i)
		home := rankAll(free.Policy(), &Payload{SessionID: id})[0]
		if got := chooseSession(t, r, id).Replica(); got != home {
			t.Errorf("session %s goes to %s; its home %s has %d requests", id, got.ID(), home.ID(), home.Load())
		}
	}
	for _, sel := range held {
		sel.Release()
	}
	home := rankAll(free.Policy(), &Payload{SessionID: "hot"})[0]
	if got := chooseSession(t, r, "hot").Replica(); got != home {
		t.Error("a session that was hot does not return home")
	}
}

func TestBoundedHashKeepsItsCountsWhenReplaced(t *testing.T) {
	f := newFleet(t, 1000, 1000, 1000, 1000)
	options := HashOptions{VirtualNodes: 100, MaxLoadFactor: 1.5}
	r := newHashRouter(f, options)
	sel := chooseSession(t, r, "s")
	before := r.Policy().(*boundedHash)
	r.Update(f.replicas[:3], ConsistentHash(options, rand.Uint64), roomy)
	after := r.Policy().(*boundedHash)
	if &after.ongoing[0] == &before.ongoing[0] {
		t.Error("as many places for fewer members") // 4 members have twice as many as 3
	}
	r.Update(f.replicas[:2], ConsistentHash(options, rand.Uint64), roomy)
	if last := r.Policy().(*boundedHash); &last.ongoing[0] != &after.ongoing[0] || last.rebuilds != 2 {
		t.Error("with about as many members it counts anew")
	}
	sel.Release()
	if n := before.sessionCount(before.keyHash(&Payload{SessionID: "s"})).Load(); n != 0 {
		t.Errorf("%d requests of a session that has none are counted", n)
	}
}

func TestBoundedHashFallsBackToTheLeastLoaded(t *testing.T) {
	f := newFleet(t, 100, 100, 1, 1, 1, 1)
	r := newHashRouter(f, HashOptions{VirtualNodes: 100, MaxLoadFactor: 1})
	for range 4 + 2*40 {
		chooseSession(t, r, "s")
	}
	for i, want := range []int{40, 40, 1, 1, 1, 1} {
		if got := f.replicas[i].Load(); got != want {
			t.Errorf("replica %s has %d; want %d", f.replicas[i].ID(), got, want)
		}
	}
}

func TestPolicyArgumentsAreCheckedStrictly(t *testing.T) {
	const hash, prefix = "ConsistentHashRouter", "PrefixCacheAffinityRouter"
	for _, c := range []struct {
		class  string
		kwargs map[string]any
		says   string // empty: it is accepted
	}{
		{hash, map[string]any{"num_virtual_nodes": 7, "num_fallback_replicas": 0, "max_load_factor": 1.25}, ""},
		{hash, map[string]any{"num_virtual_nodes": 7.0, "max_load_factor": 2}, ""},
		{hash, map[string]any{"num_virtual_nodes": 7.5}, "whole number"},
		{hash, map[string]any{"num_virtual_nodes": 0}, "num_virtual_nodes must be a number from 1"},
		{hash, map[string]any{"num_virtual_nodes": "7"}, "num_virtual_nodes must be a number"},
		{hash, map[string]any{"num_fallback_replicas": -1}, "num_fallback_replicas must be a number from 0"},
		{hash, map[string]any{"max_load_factor": 0.9}, "max_load_factor must be a number from 1"},
		{hash, map[string]any{"max_load_factor": math.NaN()}, "max_load_factor must be a number"},
		{hash, map[string]any{"vnodes": 1, "a": 2}, "has no argument a, vnodes; the known ones are max_load_factor, num_fallback_replicas, num_virtual_nodes"},
		{prefix, map[string]any{"match_rate_threshold": 0.3, "imbalanced_threshold": math.Inf(1), "kv_cache_tokens": 1 << 20}, ""},
		{prefix, map[string]any{"do_eviction": true, "eviction_target_chars": nil, "eviction_interval_secs": 10}, ""},
		{prefix, map[string]any{"match_rate_threshold": 1.5}, "match_rate_threshold must be a number from 0 to 1"},
		{prefix, map[string]any{"prefix_index_bytes": 100}, "prefix_index_bytes must be a number from"},
		{prefix, map[string]any{"tree": 1}, "has no argument tree; the known ones are block_bytes, do_eviction"},
	} {
		_, err := Lookup(c.class, c.kwargs)
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s(%v): %v", c.class, c.kwargs, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s(%v): %v; want %q", c.class, c.kwargs, err, c.says)
		}
	}
}
