package e2e

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"testing"

	"berth/llmserver/simulated"
)

func TestCapacityIsNeverExceededAndEveryQueuedClientIsServed(t *testing.T) {
	t.Parallel()
	const slots, clients, rounds = 3, 40, 10
	for _, router := range []string{"RoundRobinRouter", "PowerOfTwoChoicesRouter"} {
		t.Run(router, func(t *testing.T) {
			fleet := startEngines(t, 2, simulated.Config{MaxOngoing: slots}) // the engine refuses requests above MaxOngoing
			b := serve(t, demoConfig("max_ongoing_requests: "+strconv.Itoa(slots)+", request_router_config: {request_router_class: "+router+"}", fleet...))
			protocols := []*http.Client{newClient(t, false), newClient(t, true)}
			for range rounds { // each round is a burst on an idle fleet
				var running sync.WaitGroup
				for c := range clients {
					running.Go(func() {
						if got := chat(t.Context(), protocols[c%2], b.url, chatBody("demo", "Hello", 1+c%8, c%3 > 0)); !got.isComplete() {
							t.Errorf("client %d got %v", c, got)
						}
					})
				}
				running.Wait()
			}
			total := int64(0)
			for _, e := range fleet {
				stats := e.Engine().Stats()
				total += stats.Completed
				if stats.MaxInFlight != slots || stats.Refused != 0 {
					t.Errorf("an engine with %d slots had up to %d concurrent requests and refused %d", slots, stats.MaxInFlight, stats.Refused)
				}
			}
			if total != clients*rounds {
				t.Errorf("the engines completed %d requests, want %d", total, clients*rounds)
			}
		})
	}
}

// serveBusy starts berth with one slot, which is in use until free is called.
func serveBusy(t *testing.T, deployment string) (b *berth, engine *simulated.Server, free func()) {
	engine = startEngines(t, 1, simulated.Config{})[0]
	engine.Engine().SetFaults(simulated.Faults{Hang: true, Times: 1})
	b = serve(t, demoConfig("max_ongoing_requests: 1, "+deployment, engine))
	first := startChat(context.WithoutCancel(t.Context()), newClient(t, false), b.url, chatBody("demo", "Hello", 1, true))
	waitInFlight(t, engine, 1)
	free = sync.OnceFunc(func() {
		engine.Engine().SetFaults(simulated.Faults{})
		if got := waitResponse(t, first); !got.isComplete() {
			t.Errorf("the first request got %v", got)
		}
	})
	t.Cleanup(free)
	return b, engine, free
}

func TestQueueFullIsRefusedWithRetryAfter(t *testing.T) {
	t.Parallel()
	b, engine, free := serveBusy(t, "max_queued_requests: 1")
	client := newClient(t, false)
	second := startChat(t.Context(), client, b.url, chatBody("demo", "Hello", 1, true))
	eventually(t, "the second request is queued", func() bool { return b.sumMetric(t, "berth_queue_length") == 1 })
	third := chat(t.Context(), client, b.url, chatBody("demo", "Hello", 1, true))
	if third.status != http.StatusTooManyRequests || third.errorCode() != "queue_full" {
		t.Errorf("the third request got %v, want 429 queue_full", third)
	}
	checkRetryAfter(t, third)
	free()
	if got := waitResponse(t, second); !got.isComplete() {
		t.Errorf("the second request got %v", got)
	}
	if now := engine.Engine().Stats(); now.Requests != 2 {
		t.Errorf("the engine received %d requests, want 2", now.Requests)
	}
}

func TestQueueTimeoutIsAnsweredWithRetryAfter(t *testing.T) {
	t.Parallel()
	b, _, _ := serveBusy(t, "queue_timeout_s: 0.2")
	got := chat(t.Context(), newClient(t, false), b.url, chatBody("demo", "Hello", 1, true))
	if got.status != http.StatusServiceUnavailable || got.errorCode() != "queue_timeout" {
		t.Errorf("got %v, want 503 queue_timeout", got)
	}
	checkRetryAfter(t, got)
}

// checkRetryAfter checks that a refusal has positive Retry-After and retry-after-ms headers.
func checkRetryAfter(t *testing.T, a response) {
	t.Helper()
	for _, key := range []string{"Retry-After", "retry-after-ms"} {
		if n, err := strconv.Atoi(a.header.Get(key)); err != nil || n <= 0 {
			t.Errorf("%s is %q, want a number above 0", key, a.header.Get(key))
		}
	}
}
