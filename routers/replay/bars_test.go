package replay

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"berth/llmserver"
	"berth/routers"
)

// mooncake is a recorded trace, which is not part of the source.
var mooncake = sync.OnceValues(func() (*Trace, error) {
	return Open("../../../shared/traces/mooncake_conversation.jsonl.gz")
})

func recorded(t testing.TB) *Trace {
	t.Helper()
	trace, err := mooncake()
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the recorded traces are not here")
	}
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

func TestARestartedReplicaGetsNoMoreThanItsShareAtFirst(t *testing.T) {
	trace := recorded(t).Limit(2300)
	const n, at, window = 8, 600 * time.Second, 30 * time.Second
	for _, restarted := range []string{"a", "h"} {
		share, total := 0, 0
		o := fleetOf(n)
		o.Events = []Event{{At: at, Kind: Restart, Replica: restarted}}
		policy := spied(t, "PrefixCacheAffinityRouter", func(p *routers.Payload, r *llmserver.Replica) {
			var i int
			fmt.Sscan(p.RequestID, &i)
			if came := trace.Requests[i].At; came < at || came > at+window {
				return
			}
			if total++; r.ID() == restarted {
				share++
			}
		})
		if _, err := Run(t.Context(), trace, policy, o); err != nil {
			t.Fatal(err)
		}
		if got, most := float64(share)/float64(total), 1.5/n; got > most || share == 0 {
			t.Errorf("%s got %d of %d requests after its restart; want at most %.3f of them", restarted, share, total, most)
		}
	}
}

// A third of all requests are of one session, and its replica would have half of all load.
func TestABoundSpreadsAHotSessionAtLittleCost(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 3))
	trace, at := &Trace{BlockTokens: 16}, time.Duration(0)
	for range 6000 {
		session := 0
		if random.IntN(10) >= 3 {
			session = 1 + random.IntN(100)
		}
		at += time.Duration(random.ExpFloat64() * float64(time.Second) / 60)
		trace.Requests = append(trace.Requests, Request{
			At: at, Session: fmt.Sprint(session), Prompt: 16 * 50, Output: 150, Follows: -1, seed: uint64(session), runs: []run{{0, 49}},
		})
	}
	o := fleetOf(8)
	o.MaxOngoing = 1000
	play := func(factor float64) (most int, hitRate float64) {
		build := func(random *rand.Rand, _ *Options, _ int) routers.Builder {
			h := routers.DefaultHashOptions
			h.MaxLoadFactor = factor
			build := routers.ConsistentHash(h, random.Uint64)
			var members []*llmserver.Replica
			return func(m []*llmserver.Replica, _ routers.Policy) routers.Policy {
				members = m
				return spy{build(m, nil), func(_ *routers.Payload, r *llmserver.Replica) {
					total := 0
					for _, m := range members {
						total += m.Load()
					}
					if mean := float64(total) / 8; mean >= 8 && float64(r.Load()) > 1.25*mean+1 {
						most = max(most, r.Load())
					}
				}}
			}
		}
		got, err := Run(t.Context(), trace, Policy{"hash", build}, o)
		if err != nil {
			t.Fatal(err)
		}
		return most, got.HitRate
	}
	over, pure := play(0)
	if over == 0 {
		t.Fatal("without a bound no replica is over it, so this shows nothing")
	}
	over, bounded := play(1.25)
	if over > 0 || bounded < pure-0.03 {
		t.Errorf("a replica was over the bound with %d; hit rate %.3f after %.3f", over, bounded, pure)
	}
}

// The bars are for the whole traces and held by the command; this holds a part of one to them.
func TestPrefixAffinityBeatsEveryOtherRuleOnConversations(t *testing.T) {
	trace := recorded(t).Limit(1200)
	o := fleetOf(8)
	prefix := mustRun(t, trace, "PrefixCacheAffinityRouter", o)
	if prefix.HitRate < 0.97*prefix.Ceiling || prefix.MaxOverMean > 1.15 {
		t.Errorf("hit rate %.3f of %.3f, busiest over mean %.2f", prefix.HitRate, prefix.Ceiling, prefix.MaxOverMean)
	}
	for _, p := range Policies {
		other := mustRun(t, trace, p.Name, o)
		if prefix.TTFTMean > 1.05*other.TTFTMean || prefix.TTFT90 > 1.05*other.TTFT90 {
			t.Errorf("mean and p90 are %.0f and %.0f ms; %s has %.0f and %.0f", prefix.TTFTMean, prefix.TTFT90, p.Name, other.TTFTMean, other.TTFT90)
		}
	}
}

func TestAffinitySurvivesSaturation(t *testing.T) {
	trace := recorded(t).Limit(1200)
	o := fleetOf(8)
	o.Speed = 2
	free := mustRun(t, trace, "PrefixCacheAffinityRouter", o)
	o.MaxOngoing = 8
	capped := mustRun(t, trace, "PrefixCacheAffinityRouter", o)
	if capped.WaitMax == 0 || capped.HitRate < 0.85*free.HitRate {
		t.Errorf("hit rate %.3f with a line of up to %.0f ms; %.3f without one", capped.HitRate, capped.WaitMax, free.HitRate)
	}
}

func BenchmarkMooncake(b *testing.B) {
	trace := recorded(b)
	for b.Loop() {
		r := mustRun(b, trace, "PrefixCacheAffinityRouter", fleetOf(8))
		b.ReportMetric(r.HitRate/r.Ceiling, "of-ceiling")
	}
}
