package routers

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"berth/llmserver"
)

func TestPrefixAffinityDoesNotFloodANewReplica(t *testing.T) {
	f := newFleet(t, 999, 999, 999, 999)
	r := newAffinityRouter(f)
	var held []*Selection
	send := func(i int) *llmserver.Replica {
		sel := choosePrompt(t, r, long(i, 20))
		if held = append(held, sel); len(held) > 40 {
			held[0].outcome.Served = true
			held[0].Release()
			held = held[1:]
		}
		return sel.Replica()
	}
	for i := range 400 {
		send(i)
	}
	f.endpoints[2].Instance = "restarted"
	f.set(t, f.endpoints...)
	r.Update(f.replicas, affinity(DefaultPrefixOptions), roomy)
	got := 0
	for i := range 200 {
		if send(1000+i) == f.replicas[2] {
			got++
		}
	}
	if got > 200*3/8 || got < 200/8 { // at most 1.5 times its share
		t.Errorf("the new replica got %d of 200 prompts among four", got)
	}
}

func TestPrefixAffinityBoundsTheSentLead(t *testing.T) {
	f := newFleet(t, 1, 999, 999)
	r := newAffinityRouter(f)
	choosePrompt(t, r, long(0, 20)) // holds the only slot of the first replica
	for i := range 300 {
		serve(t, choosePrompt(t, r, long(1+i, 20)))
	}
	p := r.Policy().(*prefixAffinity)
	if lag := slices.Max(p.sent) - p.sentBlocks(0); lag > maxSentLead*21 || lag < 21 {
		t.Errorf("the first replica lags %d blocks behind; want at most %d prompts of 21", lag, maxSentLead)
	}
}

func TestPrefixAffinityPenalizesInFlightRequests(t *testing.T) {
	f := newFleet(t, 99, 99)
	r := newAffinityRouter(f)
	serve(t, choosePrompt(t, r, long(1, 20)))
	serve(t, choosePrompt(t, r, long(2, 25)))
	busy := choosePrompt(t, r, long(1, 20)) // on the first replica, which computes one block of it
	if got := choosePrompt(t, r, long(3, 20)).Replica(); busy.Replica() != f.replicas[0] || got == busy.Replica() {
		t.Error("a new prompt goes to the busy replica, since fewer blocks were sent there")
	}
}

func TestPrefixAffinityKeepsDocumentsAndSpreadsSystemPrompts(t *testing.T) {
	for documents, want := range map[int]bool{1: false, 40: true} {
		f := newFleet(t, 99, 99, 99, 99)
		r := newAffinityRouter(f)
		ask := func(document, question int) *Selection {
			return choosePrompt(t, r, chainOf(append(slices.Repeat([]int{document}, 50), 1000+question)...))
		}
		home := ask(0, 0)
		serve(t, home)
		for i := range 400 {
			serve(t, ask(i%documents, 1+i))
		}
		p := r.Policy().(*prefixAffinity)
		for i, m := range p.members {
			if m == home.Replica() {
				p.work[p.numbers[i]] += 1000
			}
		}
		if stays := ask(0, 1000).Replica() == home.Replica(); stays != want {
			t.Errorf("one of %d documents stays on a busy replica: %v", documents, stays)
		}
	}
}

func TestPrefixAffinityCheapestIsFirstOfTheSortedOrder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		n := 1 + rnd.IntN(12)
		replicas := plainReplicas(n, 9)
		policy := PrefixAffinity(DefaultPrefixOptions, rnd.IntN)(replicas, nil).(*prefixAffinity)
		for range rnd.IntN(20) {
			_, settled := policy.Reserved(&Payload{Blocks: long(rnd.IntN(3), 1+rnd.IntN(6))}, replicas[rnd.IntN(n)])
			settled(Outcome{Served: true})
		}
		for i := range policy.work {
			policy.work[i] = recompute * rnd.IntN(4)
		}
		policy.sentFloor = 100 // so that many are equal
		replicas[rnd.IntN(n)].Drain()
		p := &Payload{Blocks: long(rnd.IntN(4), 1+rnd.IntN(6))}
		var want []*llmserver.Replica
		for _, c := range (&prefixRanking{prefixAffinity: policy, blocks: p.Blocks}).sort() {
			if r := policy.members[c.member]; r.Available() {
				want = append(want, r)
			}
		}
		if got := rankAll(policy, p); !slices.Equal(got, want) {
			t.Fatalf("%d replicas are ranked in another order than theirs", n)
		}
	}
}

func BenchmarkRankAndReserve(b *testing.B) {
	for _, n := range []int{64, 4000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			replicas := plainReplicas(n, 1<<19)
			r := New(replicas, affinity(DefaultPrefixOptions), roomy, Hooks{})
			prompts := make([][]uint64, 512)
			for i := range prompts {
				prompts[i] = long(i%64, 200+i%10)
			}
			runtime.LockOSThread() // so that threadTime measures this goroutine only
			defer runtime.UnlockOSThread()
			var times []time.Duration
			for i := 0; b.Loop(); i++ {
				began := threadTime(b)
				sel, err := r.Choose(b.Context(), &Payload{Blocks: prompts[i%len(prompts)]})
				if err != nil {
					b.Fatal(err)
				}
				times = append(times, threadTime(b)-began)
				sel.outcome.Served = true
				sel.slot.Start()
				sel.Release()
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[int(math.Ceil(0.99*float64(len(times))))-1]), "p99-cpu-ns")
		})
	}
}
