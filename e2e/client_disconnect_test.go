package e2e

import (
	"context"
	"net/http"
	"testing"
	"time"

	"berth/llmserver/simulated"
)

// next is how long the client after them may wait: five seconds, and what a busy machine adds.
const next = 5*time.Second + margin

// Clients that all leave at once leave nothing behind that the next one has to wait for.
func TestAfterTwoHundredAbortsTheNextRequestIsAnswered(t *testing.T) {
	t.Parallel()
	const clients, slots, rounds = 200, 128, 2
	engine := engines(t, 1, simulated.Config{DecodeStep: 50 * time.Millisecond})[0]
	b := serve(t, demo("max_ongoing_requests: 128, queue_timeout_s: 600", engine))
	long := ask("demo", "Count for long.", 4000, true) // three minutes
	quick := ask("demo", "Hello", 2, true)
	protocols := []*http.Client{newClient(t, false), newClient(t, true)}
	for _, client := range protocols {
		if got := chat(t.Context(), client, b.url, quick); !got.complete() {
			t.Fatal(got)
		}
	}
	hangUp(protocols)
	before := b.sum(t, "go_goroutines")
	for range rounds {
		ctx, leave := context.WithCancel(t.Context())
		var leaving []<-chan answer
		for i := range clients { // some wait, some stream
			leaving = append(leaving, begin(ctx, protocols[i%2], b.url, long))
		}
		eventually(t, "all slots are taken", func() bool {
			return b.sum(t, "berth_slots", `state="running"`) == slots && b.sum(t, "berth_queue_length") == clients-slots
		})
		<-time.After(500 * time.Millisecond)
		leave()
		in, cancel := context.WithTimeout(t.Context(), next)
		defer cancel()
		if got := chat(in, newClient(t, false), b.url, quick); !got.complete() {
			t.Errorf("within %v the next client got %v", next, got)
		}
		for _, result := range leaving {
			if got := expect(t, result); got.err == nil {
				t.Errorf("a client that left got %v", got)
			}
		}
		eventually(t, "the engine works on nothing", func() bool { return engine.Engine().Stats().InFlight == 0 })
	}
	hangUp(protocols)
	eventually(t, "not many more goroutines than before are left", func() bool { return b.sum(t, "go_goroutines") < before+clients/10 })
}

func hangUp(clients []*http.Client) {
	for _, c := range clients {
		c.CloseIdleConnections()
	}
}
