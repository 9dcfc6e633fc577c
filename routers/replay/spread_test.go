package replay

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"berth/llmserver"
	"berth/routers"
)

func TestReplayBurstOfOnePromptUsesFewReplicas(t *testing.T) {
	times, chains := make([]time.Duration, 64), make([][]uint64, 64)
	for i := range chains {
		chains[i] = ids(1, 4096/16)
	}
	used := make(map[*llmserver.Replica]bool)
	policy := spied(t, "PrefixCacheAffinityRouter", func(_ *routers.Payload, r *llmserver.Replica) { used[r] = true })
	if _, err := Run(t.Context(), promptsAt(times, chains...), policy, fleetOf(8)); err != nil {
		t.Fatal(err)
	}
	if len(used) > 2 {
		t.Errorf("%d replicas compute the prompt", len(used))
	}
}

func TestReplaySessionsMoveOnlyToTheAddedReplica(t *testing.T) {
	trace := conversations(1, 200, 10)
	added := 10 * time.Second
	o := fleetOf(4)
	o.Events = []Event{{At: added, Kind: Add}}
	homes, moved := make(map[string]string), 0
	policy := spied(t, "ConsistentHashRouter", func(p *routers.Payload, r *llmserver.Replica) {
		if home, ok := homes[p.SessionID]; ok && home != r.ID() {
			if moved++; r.ID() != "e" {
				t.Errorf("session %s moved from %s to %s", p.SessionID, home, r.ID())
			}
		}
		homes[p.SessionID] = r.ID()
	})
	got, err := Run(t.Context(), trace, policy, o)
	if err != nil {
		t.Fatal(err)
	}
	if moved == 0 || got.SessionsMoved != moved {
		t.Errorf("%d sessions moved; %d are reported", moved, got.SessionsMoved)
	}
}

func TestReplayBarsOfRestart(t *testing.T) {
	trace := recorded(t, conversation).Limit(2300)
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

// 30 % of all requests belong to one session, whose replica would get half of the load.
func TestReplayBarsOfHotSession(t *testing.T) {
	for _, sessions := range []int{100, 300} { // of about 42 and 14 requests
		var losses []float64
		seeds := uint64(1)
		if whole() {
			seeds = 5
		}
		for seed := range seeds {
			trace := oneHotSession(1+seed, sessions)
			over, pure := playBounded(t, trace, 0)
			if over == 0 {
				t.Fatal("no replica exceeds the bound even without it, so the test proves nothing")
			}
			over, bounded := playBounded(t, trace, 1.25)
			if over > 0 {
				t.Errorf("a replica exceeded the bound %d times", over)
			}
			losses = append(losses, pure.HitRate-bounded.HitRate)
		}
		slices.Sort(losses)
		t.Logf("with %d sessions the bound costs %.1f points of the hit rate", sessions, 100*losses[len(losses)/2])
		if losses[len(losses)/2] > 0.03 {
			t.Errorf("with %d sessions the bound costs too much hit rate: by seed %.3f", sessions, losses)
		}
	}
}

// oneHotSession returns a trace with one session of 30 % of the requests.
func oneHotSession(seed uint64, sessions int) *Trace {
	random := rand.New(rand.NewPCG(seed, 3))
	trace, at := &Trace{BlockTokens: 16}, time.Duration(0)
	for range 6000 {
		session := 0
		if random.IntN(10) >= 3 {
			session = 1 + random.IntN(sessions)
		}
		at += time.Duration(random.ExpFloat64() * float64(time.Second) / 60)
		trace.Requests = append(trace.Requests, Request{
			At: at, Session: fmt.Sprint(session), Prompt: 16 * 50, Output: 150, Follows: -1, seed: uint64(session), runs: []run{{0, 49}},
		})
	}
	return trace
}

// playBounded replays a trace by consistent hash and counts how often a replica had more than 1.25
// times the mean load plus one.
func playBounded(t *testing.T, trace *Trace, factor float64) (over int, result *Result) {
	o := fleetOf(8)
	o.MaxOngoing = 1000
	build := func(random *rand.Rand, _ *Options, _ int) routers.Builder {
		h := routers.DefaultHashOptions
		h.MaxLoadFactor = factor
		build := routers.ConsistentHash(h, random.Uint64)
		return func(members []*llmserver.Replica, _ routers.Policy) routers.Policy {
			return spy{build(members, nil), func(_ *routers.Payload, r *llmserver.Replica) {
				total := 0
				for _, m := range members {
					total += m.Load()
				}
				if mean := float64(total) / 8; mean >= 8 && float64(r.Load()) > 1.25*mean+1 {
					over++
				}
			}}
		}
	}
	result, err := Run(t.Context(), trace, Policy{"hash", build}, o)
	if err != nil {
		t.Fatal(err)
	}
	return over, result
}
