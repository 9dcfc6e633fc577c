package e2e

import (
	"context"
	"net/http"
	"testing"
	"time"

	"berth/llmserver/simulated"
)

// nextRequestTimeout bounds the request after the disconnects: five seconds plus the margin of a
// busy machine.
const nextRequestTimeout = 5*time.Second + timingMargin

// Simultaneous disconnects of all clients do not delay the next request.
func TestAfterTwoHundredAbortsTheNextRequestIsAnswered(t *testing.T) {
	t.Parallel()
	const clients, slots, rounds = 200, 128, 2
	engine := startEngines(t, 1, simulated.Config{DecodeStep: 50 * time.Millisecond})[0]
	b := serve(t, demoConfig("max_ongoing_requests: 128, queue_timeout_s: 600", engine))
	long := chatBody("demo", "Count for long.", 4000, true) // three minutes
	quick := chatBody("demo", "Hello", 2, true)
	protocols := []*http.Client{newClient(t, false), newClient(t, true)}
	for _, client := range protocols {
		if got := chat(t.Context(), client, b.url, quick); !got.isComplete() {
			t.Fatal(got)
		}
	}
	closeIdleConnections(protocols)
	before := b.sumMetric(t, "go_goroutines")
	for range rounds {
		ctx, cancel := context.WithCancel(t.Context())
		var disconnected []<-chan response
		for i := range clients { // some queued, some streaming
			disconnected = append(disconnected, startChat(ctx, protocols[i%2], b.url, long))
		}
		eventually(t, "all slots are in use and the other requests queued", func() bool {
			return b.sumMetric(t, "berth_slots", `state="running"`) == slots && b.sumMetric(t, "berth_queue_length") == clients-slots
		})
		<-time.After(500 * time.Millisecond)
		cancel()
		in, cancel := context.WithTimeout(t.Context(), nextRequestTimeout)
		defer cancel()
		if got := chat(in, newClient(t, false), b.url, quick); !got.isComplete() {
			t.Errorf("within %v the next request got %v", nextRequestTimeout, got)
		}
		for _, result := range disconnected {
			if got := waitResponse(t, result); got.err == nil {
				t.Errorf("a disconnected client got %v", got)
			}
		}
		eventually(t, "the engine is idle", func() bool { return engine.Engine().Stats().InFlight == 0 })
	}
	closeIdleConnections(protocols)
	eventually(t, "the number of goroutines is back to normal", func() bool { return b.sumMetric(t, "go_goroutines") < before+clients/10 })
}

// closeIdleConnections closes the idle connections of all clients.
func closeIdleConnections(clients []*http.Client) {
	for _, c := range clients {
		c.CloseIdleConnections()
	}
}
