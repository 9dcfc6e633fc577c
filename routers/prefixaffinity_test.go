package routers

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
)

// newAffinityRouter returns a router by prefix affinity that prefers the first member among equals.
func newAffinityRouter(f *fleet) *Router {
	return New(f.replicas, affinity(DefaultPrefixOptions), roomy, Hooks{})
}

func affinity(o PrefixOptions) Builder {
	return PrefixAffinity(o, func(int) int { return 0 })
}

// choosePrompt chooses for a chain of blocks and fails the test on an error.
func choosePrompt(t testing.TB, r *Router, c []uint64) *Selection {
	t.Helper()
	sel, err := r.Choose(t.Context(), &Payload{Blocks: c})
	if err != nil {
		t.Fatal(err)
	}
	return sel
}

// depth returns the number of blocks of a chain that a replica has by the router's index.
func depth(r *Router, replica *llmserver.Replica, c []uint64) int {
	p := r.Policy().(*prefixAffinity)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.prefixes.Match(c)
	return p.prefixes.MatchedBlocks(p.holders[replica].Number())
}

func TestPrefixAffinityFollowsThePrefix(t *testing.T) {
	f := newFleet(t, 99, 99, 99, 99)
	r := newAffinityRouter(f)
	homes := make(map[int]*llmserver.Replica)
	var spread []*llmserver.Replica
	for i := range 8 {
		sel := choosePrompt(t, r, long(i, 50))
		homes[i] = sel.Replica()
		spread = append(spread, sel.Replica())
		serve(t, sel)
	}
	for _, m := range f.replicas {
		if n := len(slices.DeleteFunc(slices.Clone(spread), func(r *llmserver.Replica) bool { return r != m })); n != 2 {
			t.Errorf("of eight prompts of their own, replica %s got %d; want 2", m.ID(), n)
		}
	}
	for i := range 8 {
		sel := choosePrompt(t, r, long(i, 60))
		if sel.Replica() != homes[i] {
			t.Errorf("prompt %d went to %s; its prefix is on %s", i, sel.Replica().ID(), homes[i].ID())
		}
		serve(t, sel)
	}
}

func TestPrefixAffinityLeavesABusyReplica(t *testing.T) {
	f := newFleet(t, 99, 99)
	r := newAffinityRouter(f)
	home := choosePrompt(t, r, long(1, 10)).Replica()
	policy := r.Policy().(*prefixAffinity)
	number := policy.holders[home].Number()
	policy.work[number] = recompute*10 - maxSentLead*11 // the blocks sent before count, too
	if got := rankAll(policy, &Payload{Blocks: long(1, 10)})[0]; got != home {
		t.Errorf("with %d blocks in flight it went to %s", policy.work[number], got.ID())
	}
	policy.work[number] = recompute*10 + 1
	if got := rankAll(policy, &Payload{Blocks: long(1, 10)})[0]; got == home {
		t.Errorf("with %d blocks in flight it stayed", policy.work[number])
	}
}

func TestPrefixAffinityBurstOfOnePromptIsComputedOnce(t *testing.T) {
	f := newFleet(t, slices.Repeat([]int{64}, 8)...)
	r := newAffinityRouter(f)
	start := make(chan struct{})
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			<-start
			choosePrompt(t, r, long(1, 32))
		})
	}
	close(start)
	all.Wait()
	used := 0
	for _, m := range f.replicas {
		if m.Load() > 0 {
			used++
		}
	}
	if used > 2 {
		t.Errorf("%d replicas compute it", used)
	}
}

func TestPrefixAffinityRollsBackFailedRequests(t *testing.T) {
	f := newFleet(t, 99)
	r := newAffinityRouter(f)
	a := f.replicas[0]
	sel := choosePrompt(t, r, long(1, 9))
	sel.Release() // released before it was sent
	if got := depth(r, a, long(1, 9)); got != 0 {
		t.Errorf("after the only request was released unsent, %d blocks are known", got)
	}
	first, second := choosePrompt(t, r, long(1, 9)), choosePrompt(t, r, long(1, 5))
	first.Release()
	if got := depth(r, a, long(1, 9)); got != 5 {
		t.Errorf("another request depends on 5 blocks; %d are known", got)
	}
	serve(t, second)
	choosePrompt(t, r, long(1, 9)).Release()
	if got := depth(r, a, long(1, 9)); got != 5 {
		t.Errorf("5 blocks are confirmed; %d are known", got)
	}
	if p := r.Policy().(*prefixAffinity); p.work[0] != 0 {
		t.Errorf("without requests in flight there are %d blocks of work", p.work[0])
	}
}

func TestPrefixAffinityForgetsAReplicaWithoutConnection(t *testing.T) {
	f := newFleet(t, 99)
	r := newAffinityRouter(f)
	a := f.replicas[0]
	serve(t, choosePrompt(t, r, long(1, 9)))
	fail := func(err error) {
		f.fakes[0].faults = func(op string) error {
			if op == "do" {
				return err
			}
			return nil
		}
		sel := choosePrompt(t, r, long(2, 9))
		if _, got := sel.Dispatch(&http.Request{}); !errors.Is(got, err) {
			t.Fatalf("Dispatch: %v", got)
		}
		sel.Release()
	}
	fail(llmserver.ErrBroken)
	if got := depth(r, a, long(1, 9)); got != 9 {
		t.Errorf("after a broken connection %d blocks are known; want 9", got)
	}
	fail(llmserver.ErrNoConnection)
	if got := depth(r, a, long(1, 9)); got != 0 {
		t.Errorf("after a refused connection %d blocks are known", got)
	}
}

func TestPrefixAffinityForgetsReplicasThatLeave(t *testing.T) {
	f := newFleet(t, 99, 99)
	r := newAffinityRouter(f)
	serve(t, choosePrompt(t, r, long(1, 9)))
	serve(t, choosePrompt(t, r, long(2, 9)))
	late := choosePrompt(t, r, long(1, 12)) // on a, settled after its number was assigned again
	a, b := f.replicas[0], f.replicas[1]
	if late.Replica() != a {
		t.Fatalf("it went to %s", late.Replica().ID())
	}
	f.endpoints[0].Instance = "restarted"
	f.set(t, f.endpoints...)
	r.Update(f.replicas, affinity(DefaultPrefixOptions), roomy)
	if f.replicas[0] == a {
		t.Fatal("a restarted replica is the same object")
	}
	if got := depth(r, f.replicas[0], long(1, 9)); got != 0 {
		t.Errorf("%d blocks of the new process are known", got)
	}
	if got := depth(r, b, long(2, 9)); got != 9 {
		t.Errorf("%d blocks of the replica that stayed are known; want 9", got)
	}
	if n := len(r.Policy().(*prefixAffinity).work); n != 2 {
		t.Errorf("%d numbers were assigned; want that of the old process used again", n)
	}
	held := choosePrompt(t, r, long(1, 9))
	late.Release()
	if p, want := r.Policy().(*prefixAffinity), 10+inFlightPenalty*(10+10+4+10)/4; p.work[p.holders[held.Replica()].Number()] != want {
		t.Errorf("%d blocks of work are in flight; want %d", p.work[p.holders[held.Replica()].Number()], want)
	}
	p := new(Payload)
	p.Blocks = long(2, 9)
	b.Drain()
	if got := rankAll(r.Policy(), p); len(got) != 1 {
		t.Errorf("with one draining %d are ranked", len(got))
	}
	if got := depth(r, b, long(2, 9)); got != 9 {
		t.Errorf("%d blocks of an unavailable replica are known; want 9", got)
	}
}

func TestPrefixAffinityRankingIsStable(t *testing.T) {
	f := newFleet(t, 99, 99, 99, 99)
	r := newAffinityRouter(f)
	choosePrompt(t, r, long(1, 20))
	seq := r.Policy().Rank(&Payload{Blocks: long(1, 20)})
	flat := func() (ids string) {
		for tier := range seq {
			ids += names(tier.Replicas)
		}
		return ids
	}
	before := flat()
	r.Policy().(*prefixAffinity).work[1] += 1000
	if after := flat(); after != before {
		t.Errorf("it ranked %s and then %s", before, after)
	}
}

func TestPrefixAffinityThresholdsOfMatchAndImbalance(t *testing.T) {
	f := newFleet(t, 999, 999)
	o := DefaultPrefixOptions
	o.MatchRate, o.Imbalance = 0.5, 10
	r := New(f.replicas, affinity(o), roomy, Hooks{})
	home := choosePrompt(t, r, long(1, 20)).Replica()
	first := func(c []uint64) *llmserver.Replica { return rankAll(r.Policy(), &Payload{Blocks: c})[0] }
	if first(append(long(1, 20), long(2, 20)...)) != home {
		t.Error("a match of half a prompt does not count")
	}
	if first(append(long(1, 20), long(2, 21)...)) == home {
		t.Error("a match of less than half a prompt counts")
	}
	for range 10 {
		if choosePrompt(t, r, long(1, 20)).Replica() != home {
			t.Error("it left too early")
		}
	}
	if first(long(1, 20)) == home {
		t.Error("with 11 requests against none it stays")
	}
}

func TestPrefixAffinityWithoutBlocksIsPowerOfTwo(t *testing.T) {
	f := newFleet(t, 999, 999, 999, 999)
	r := New(f.replicas, PrefixAffinity(DefaultPrefixOptions, rand.New(rand.NewPCG(1, 2)).IntN), roomy, Hooks{})
	tiers := 0
	for tier := range r.Policy().Rank(new(Payload)) {
		if tiers++; len(tier.Replicas) != 2 {
			t.Errorf("tier %d has %d replicas; want two, and two more", tiers, len(tier.Replicas))
		}
	}
	for range 400 {
		choosePrompt(t, r, nil)
	}
	for _, m := range f.replicas {
		if m.Load() < 90 || m.Load() > 110 {
			t.Errorf("replica %s has %d of 400", m.ID(), m.Load())
		}
	}
}

func TestPrefixAffinityKeepsItsIndexWhileBlocksAreTheSame(t *testing.T) {
	f := newFleet(t, 9)
	before := affinity(DefaultPrefixOptions)(f.replicas, nil).(*prefixAffinity)
	o := DefaultPrefixOptions
	o.BlockBytes = 1024
	if after := affinity(o)(f.replicas, before).(*prefixAffinity); after.learned == before.learned {
		t.Error("the index is kept though blocks have another size")
	}
	if after := affinity(DefaultPrefixOptions)(f.replicas, before).(*prefixAffinity); after.learned != before.learned {
		t.Error("the index is lost though nothing changed")
	}
}

// A replica that responds with errors at once would otherwise attract the whole conversation.
func TestPrefixAffinityLearnsNothingFromErrorResponses(t *testing.T) {
	for name, end := range map[string]func(*Selection){
		"an error status":          func(s *Selection) { s.outcome.Served = false },
		"an error classified":      func(s *Selection) { s.Fail(llmserver.ErrServerError) },
		"a response that broke":    func(s *Selection) { s.Fail(llmserver.ErrBroken) },
		"a client that went away":  func(s *Selection) { s.Fail(context.Canceled) },
		"a response that is whole": func(*Selection) {},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 4, 4)
			r := newAffinityRouter(f)
			sel := choosePrompt(t, r, long(1, 8))
			if _, err := sel.Dispatch(&http.Request{}); err != nil {
				t.Fatal(err)
			}
			end(sel)
			sel.Release()
			again := choosePrompt(t, r, long(1, 8))
			defer again.Release()
			if learned := again.Matched() > 0; learned != (name == "a client that went away" || name == "a response that is whole") {
				t.Errorf("%d blocks are believed to be cached", again.Matched())
			}
		})
	}
}

// A replica that has lost its prompts is used as soon as all others are at work, although these
// have the beginning of the prompt.
func TestPrefixAffinityUsesAReplicaThatLostItsPrompts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newProbedFleet(t, time.Second, 9, 9, 9)
		r := newAffinityRouter(f)
		n := 100
		next := func(agent int) *Selection { // the agents' system prompts differ
			n++
			return choosePrompt(t, r, append(long(agent, 40), long(n, 1)...))
		}
		var busy [3]*Selection // an agent each, on a replica of its own
		for agent := range busy {
			busy[agent] = next(agent)
			busy[agent].Dispatch(&http.Request{})
		}
		home, killed := busy[0].Replica(), busy[2].Replica()
		sel := next(2)
		f.fakes[slices.Index(f.replicas, killed)].down.Store(true)
		sel.Dispatch(&http.Request{})
		sel.Release()
		f.fakes[slices.Index(f.replicas, killed)].down.Store(false)
		time.Sleep(10 * time.Second)
		if synctest.Wait(); !killed.Available() || depth(r, killed, long(2, 40)) != 0 {
			t.Fatalf("it is %s, with %d blocks", killed.State(), depth(r, killed, long(2, 40)))
		}
		wants := func(agent int, want *llmserver.Replica, why string) {
			sel := next(agent)
			defer sel.Release()
			if sel.Replica() != want {
				t.Errorf("the prompt went to %s, and not to %s, %s", sel.Replica().ID(), want.ID(), why)
			}
			sel.Dispatch(&http.Request{})
		}
		wants(0, home, "while the restarted one is at work")
		busy[2].Release()
		busy[1].Release()
		wants(0, home, "while another one is idle, too")
		busy[1] = next(1)
		wants(0, killed, "the only idle one")
		wants(1, busy[1].Replica(), "which has the prompt, while the idle one is not without any")
		busy[0].Release()
		busy[1].Release()
	})
}
