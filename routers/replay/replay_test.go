package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"berth/llmserver"
	"berth/llmserver/simulated"
	"berth/routers"
)

// engineCost is the cost model of all replays here.
var engineCost = simulated.Cost{
	PrefillTokensPerSecond: 8000, DecodeStep: 6 * time.Millisecond, DecodeStepPerRequest: 350 * time.Microsecond,
}

// fleetOf returns options for n replicas.
func fleetOf(n int) Options {
	return Options{Replicas: n, MaxOngoing: 64, Cost: engineCost, Speed: 1, Seed: 1}
}

// promptsAt returns a trace of prompts without output: at each time one of full 16-token blocks
// with these ids.
func promptsAt(times []time.Duration, ids ...[]uint64) *Trace {
	t := &Trace{BlockTokens: 16}
	for i, at := range times {
		r := Request{At: at, Prompt: 16 * len(ids[i]), Follows: -1}
		for _, id := range ids[i] {
			r.runs = appendID(r.runs, id)
		}
		t.Requests = append(t.Requests, r)
	}
	return t
}

// ids returns n consecutive block ids.
func ids(first uint64, n int) []uint64 {
	all := make([]uint64, n)
	for i := range all {
		all[i] = first + uint64(i)
	}
	return all
}

func mustRun(t testing.TB, trace *Trace, policy string, o Options) *Result {
	t.Helper()
	found, err := FindPolicies(policy)
	if err != nil {
		t.Fatal(err)
	}
	result, err := Run(t.Context(), trace, found[0], o)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// conversations returns a random trace of conversations.
func conversations(seed uint64, sessions, turns int) *Trace {
	random := rand.New(rand.NewPCG(seed, 7))
	t := &Trace{BlockTokens: 16, Sessions: sessions}
	for s := range sessions {
		follows, at, blocks := -1, time.Duration(0), 20
		for range turns {
			t.Requests = append(t.Requests, Request{
				At: at, Session: fmt.Sprint(s), Prompt: blocks*16 + random.IntN(16) + 1, Output: random.IntN(50),
				Follows: follows, Gap: time.Second, session: s, seed: uint64(s), runs: []run{{0, blocks}},
			})
			follows = len(t.Requests) - 1
			at += time.Duration(random.IntN(int(5 * time.Second)))
			blocks += random.IntN(60)
		}
	}
	return t.ScheduleSessions(seed, 500*time.Millisecond)
}

func TestReplayFiguresMatchTheEngine(t *testing.T) {
	trace := promptsAt([]time.Duration{0, 2 * time.Second}, ids(1, 500), ids(1, 500))
	got := mustRun(t, trace, "RoundRobinRouter", fleetOf(1))
	got.ttft = nil
	// The last token of a prompt is always computed, with its block: 16 tokens take 2 ms, 8000 a
	// second.
	want := Result{
		Policy: "RoundRobinRouter", Requests: 2, HitRate: 499.0 / 1000, Ceiling: 499.0 / 1000, MaxOverMean: 1,
		TTFTMean: 501, TTFT50: 2, TTFT90: 1000, TTFT99: 1000,
	}
	if fmt.Sprint(*got) != fmt.Sprint(want) {
		t.Errorf("on one replica:\n%+v; want\n%+v", *got, want)
	}
	got = mustRun(t, trace, "RoundRobinRouter", fleetOf(2))
	if got.HitRate != 0 || got.TTFTMean != 1000 || got.Ceiling != 499.0/1000 {
		t.Errorf("on two replicas: %+v", *got)
	}
	o := fleetOf(1)
	o.KVTokens = 8000
	other := promptsAt([]time.Duration{0, 2 * time.Second, 4 * time.Second}, ids(1, 500), ids(1000, 500), ids(1, 500))
	if got = mustRun(t, other, "RoundRobinRouter", o); got.HitRate != 0 || got.Ceiling == 0 {
		t.Errorf("a cache for one prompt has hits: %+v", *got)
	}
}

func TestReplayRequestJoinsTheNextStep(t *testing.T) {
	trace := promptsAt([]time.Duration{0, time.Second}, ids(1, 1), ids(1000, 1))
	trace.Requests[0].Output, trace.Requests[1].Output = 1000, 1
	got := mustRun(t, trace, "RoundRobinRouter", fleetOf(1))
	// Steps of 6.35 ms end at 8.35 ms and so on, the next after a second at 1.0053 s; it computes
	// 16 prompt tokens and two output tokens.
	if first, want := time.Duration(got.TTFT99*1e6), 5300*time.Microsecond+8700*time.Microsecond; first != want {
		t.Errorf("the first token comes after %v; want %v", first, want)
	}
}

func TestReplayRequestsQueueWhenReplicasAreFull(t *testing.T) {
	o := fleetOf(1)
	o.MaxOngoing = 1
	trace := promptsAt([]time.Duration{0, 0, 0}, ids(1, 500), ids(1000, 500), ids(2000, 500))
	for _, p := range Policies {
		got := mustRun(t, trace, p.Name, o)
		if got.WaitMax != 2000 || got.TTFTMean != 2000 || got.Requests != 3 {
			t.Errorf("three prompts of a second: %+v", *got)
		}
	}
}

func TestReplayTurnWaitsForTheResponseBefore(t *testing.T) {
	trace := promptsAt([]time.Duration{0, time.Second / 2}, ids(1, 500), ids(1, 500))
	trace.Requests[1].Follows, trace.Requests[1].Gap = 0, time.Second
	got := mustRun(t, trace, "RoundRobinRouter", fleetOf(1))
	if got.HitRate != 499.0/1000 {
		t.Errorf("the second turn arrived during the first: hit rate %v", got.HitRate)
	}
	trace.Requests[1].Follows = -1
	if got := mustRun(t, trace, "RoundRobinRouter", fleetOf(1)); got.HitRate == 499.0/1000 {
		t.Error("a request that follows none waited")
	}
}

func TestReplaySameSeedSameResult(t *testing.T) {
	for _, p := range Policies {
		var outs [3]bytes.Buffer
		for i := range outs {
			o := fleetOf(5)
			o.MaxOngoing = 4
			o.Events = []Event{{At: 2 * time.Second, Kind: Add}, {At: 4 * time.Second, Kind: Restart, Replica: "b"}, {At: 6 * time.Second, Kind: Remove, Replica: "c"}}
			seed := uint64(1 + i/2)
			o.Seed = seed
			r := mustRun(t, conversations(seed, 12, 10), p.Name, o)
			if r.Refused != 0 || r.Requests != 12*10 {
				t.Errorf("%s served %d and refused %d", p.Name, r.Requests, r.Refused)
			}
			json.NewEncoder(&outs[i]).Encode(r)
		}
		if !bytes.Equal(outs[0].Bytes(), outs[1].Bytes()) {
			t.Errorf("%s:\n%s\n%s", p.Name, outs[0].String(), outs[1].String())
		}
		if bytes.Equal(outs[0].Bytes(), outs[2].Bytes()) {
			t.Errorf("%s: another seed gives the same result", p.Name)
		}
	}
}

// A spy is a policy that reports where requests are placed.
type spy struct {
	routers.Policy
	placed func(p *routers.Payload, r *llmserver.Replica)
}

func (s spy) Reserved(p *routers.Payload, r *llmserver.Replica) (int, func(routers.Outcome)) {
	s.placed(p, r)
	if l, ok := s.Policy.(routers.Learner); ok {
		return l.Reserved(p, r)
	}
	return 0, nil
}

// spied wraps the policy of a name in a spy.
func spied(t *testing.T, name string, placed func(p *routers.Payload, r *llmserver.Replica)) Policy {
	t.Helper()
	found, err := FindPolicies(name)
	if err != nil {
		t.Fatal(err)
	}
	return Policy{name, func(random *rand.Rand, o *Options, block int) routers.Builder {
		build := found[0].build(random, o, block)
		return func(members []*llmserver.Replica, prev routers.Policy) routers.Policy {
			if prev, ok := prev.(spy); ok {
				return spy{build(members, prev.Policy), placed}
			}
			return spy{build(members, nil), placed}
		}
	}}
}

func TestReplayPolicyBlock(t *testing.T) {
	o := fleetOf(2)
	o.PolicyBlock = 4
	var seen []int
	policy := spied(t, "PrefixCacheAffinityRouter", func(p *routers.Payload, _ *llmserver.Replica) { seen = append(seen, len(p.Blocks)) })
	over := -1
	o.Progress = func(n, all int) { over = n * 100 / all }
	trace := promptsAt([]time.Duration{0, 5 * time.Second, 10 * time.Second}, ids(1, 11), ids(1, 12), append(ids(1, 8), 99, 98, 97))
	got, err := Run(t.Context(), trace, policy, o)
	if err != nil {
		t.Fatal(err)
	}
	// The engine knows each block, the last but where it ends a prompt: 11 of 12 in the second, 8
	// of 11 in the third.
	if want := (11.0 + 8.0) / 34; !slices.Equal(seen, []int{2, 3, 2}) || got.HitRate != want {
		t.Errorf("the policy sees %d blocks; the hit rate is %.3f, want %.3f", seen, got.HitRate, want)
	}
	if over < 0 {
		t.Error("Progress was not called")
	}
}

func TestReplayRejectsEventsForUnknownReplicas(t *testing.T) {
	o := fleetOf(2)
	o.Events = []Event{{Kind: Restart, Replica: "z"}}
	found, _ := FindPolicies("RoundRobinRouter")
	if _, err := Run(t.Context(), conversations(1, 2, 2), found[0], o); err == nil {
		t.Error("no error")
	}
}

// A ranking has each replica once and is the same when it is ranged over twice.
func TestReplayBaselinesRankEachReplicaOnce(t *testing.T) {
	for _, p := range Policies {
		check := func(q routers.Policy, payload *routers.Payload) {
			seq := q.Rank(payload)
			first, second := flat(seq), flat(seq)
			if !slices.Equal(first, second) || len(first) == 0 {
				t.Errorf("%s ranks %d, then %d replicas", p.Name, len(first), len(second))
			}
			for i, r := range first {
				if slices.Contains(first[:i], r) {
					t.Errorf("%s ranks %s twice", p.Name, r.ID())
				}
			}
		}
		wrapped := Policy{p.Name, func(random *rand.Rand, o *Options, block int) routers.Builder {
			build := p.build(random, o, block)
			return func(members []*llmserver.Replica, _ routers.Policy) routers.Policy {
				q := build(members, nil)
				for i := range uint64(20) {
					check(q, &routers.Payload{Blocks: ids(1000*(i%3), int(i))})
				}
				return q
			}
		}}
		if _, err := Run(t.Context(), conversations(1, 2, 2), wrapped, fleetOf(5)); err != nil {
			t.Fatal(err)
		}
	}
}

func flat(seq iter.Seq[routers.Tier]) (all []*llmserver.Replica) {
	for tier := range seq {
		all = append(all, tier.Replicas...)
	}
	return all
}

func TestReplayOfThousandsOfReplicas(t *testing.T) {
	o := fleetOf(4000)
	if got := mustRun(t, conversations(1, 20, 5), "PrefixCacheAffinityRouter", o); got.Requests != 100 {
		t.Errorf("%d of 100 requests were served", got.Requests)
	}
}

func TestReplayReplicaNames(t *testing.T) {
	for i, want := range map[int]string{0: "a", 25: "z", 26: "aa", 27: "ab", 52: "ba", 26 * 27: "aaa"} {
		if got := replicaName(i); got != want {
			t.Errorf("replica %d has the name %s; want %s", i, got, want)
		}
	}
}
