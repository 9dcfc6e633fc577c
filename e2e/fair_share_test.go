package e2e

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// It is not parallel to others: what it measures is how two processes fare against each other.
// BERTH_FAIR_SECONDS is how long it looks.
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
		eventually(t, "all slots are taken", func() bool { return a.slots(t) == slotCounts{Running: slots} }) // the first ingress has them all, for now
	}
	eventually(t, "both are at work", func() bool { return served[0].Load() > 0 && served[1].Load() > 0 || t.Failed() })
	share := 0.0
	for range 3 { // a busy machine may do a process wrong for some seconds; an unfair agent does so at any time
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
		t.Errorf("the engine had up to %d requests at once, want %d", w.maxConcurrent(), slots)
	}
}
