package e2e

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The test is not parallel, because it measures the relative throughput of two processes.
// BERTH_FAIR_SECONDS sets the duration of the measurement.
func TestAgentGivesTwoOverloadedIngressesEqualShares(t *testing.T) {
	const slots, clients = 4, 24
	seconds := envInt(t, "BERTH_FAIR_SECONDS", 4)
	w := startCountingEngines(t, 1)[0]
	a := startAgent(t, w.url, slots)
	var served [2]atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for i := range served {
		b := serve(t, agentConfig("", a.url))
		for range clients {
			client := newClient(t, false)
			running.Go(func() {
				for ctx.Err() == nil {
					if got := chat(ctx, client, b.url, chatBody("demo", "Hello", 20, true)); got.isComplete() {
						served[i].Add(1)
					} else if ctx.Err() == nil {
						t.Errorf("a client of ingress %d got %v", i, got)
						return
					}
				}
			})
		}
		eventually(t, "all slots are in use", func() bool { return a.slots(t) == slotCounts{Running: slots} }) // initially all by the first ingress
	}
	eventually(t, "both ingresses have completed requests", func() bool { return served[0].Load() > 0 && served[1].Load() > 0 || t.Failed() })
	share := 0.0
	for range 3 { // a busy machine may disadvantage a process for some seconds, an unfair agent always does
		before := [2]int64{served[0].Load(), served[1].Load()}
		<-time.After(time.Duration(seconds) * time.Second)
		first, second := served[0].Load()-before[0], served[1].Load()-before[1]
		t.Logf("%d and %d requests were served in %d s", first, second, seconds)
		if share = float64(first) / float64(first+second); share >= 0.4 && share <= 0.6 {
			break
		}
	}
	stop()
	running.Wait()
	if !(share >= 0.4 && share <= 0.6) {
		t.Errorf("the first ingress got %.0f %% of the slots, want 40 to 60", 100*share)
	}
	if w.maxConcurrent() != slots {
		t.Errorf("the engine had up to %d concurrent requests, want %d", w.maxConcurrent(), slots)
	}
}
