package e2e

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"berth/llmserver/simulated"
)

func TestRetryReplacesAReplicaThatFailsBeforeTheFirstByte(t *testing.T) {
	t.Parallel()
	for _, failure := range []string{"connection reset", "process gone"} {
		t.Run(failure, func(t *testing.T) {
			fleet := startEngines(t, 2, simulated.Config{})
			b := serve(t, demoConfig("health_check_period_s: 3600", fleet...))
			client := newClient(t, false)
			for range 2 { // after these requests the initial probes have ended
				if got := chat(t.Context(), client, b.url, chatBody("demo", "Hello", 4, true)); !got.isComplete() {
					t.Fatalf("got %v, want a complete stream", got)
				}
			}
			if failure == "process gone" {
				fleet[0].Close()
			} else {
				fleet[0].Engine().SetFaults(simulated.Faults{Cut: simulated.CutReset})
			}
			for range 4 { // on every replica in turn
				if got := chat(t.Context(), client, b.url, chatBody("demo", "Hello", 4, true)); !got.isComplete() {
					t.Fatalf("got %v, want a complete stream", got)
				}
			}
			if b.sumMetric(t, "berth_retries_total", `model="demo"`) == 0 {
				t.Error("no retry was needed, so the test proves nothing")
			}
			if now := fleet[1].Engine().Stats(); now.Completed != 5 {
				t.Errorf("the other replica completed %d requests, want 1 of the first 2 and all 4 later ones", now.Completed)
			}
		})
	}
}

func TestRetryHidesIdleConnectionsThatTheEngineClosed(t *testing.T) {
	t.Parallel()
	engine := simulated.New(simulated.Config{PrefillTokensPerSecond: 1e6, DecodeStep: time.Millisecond})
	t.Cleanup(engine.Close)
	b := serve(t, loopbackConfig+"llm_configs:\n- model_loading_config: {model_id: demo}\n  replicas: [{url: \""+serveClosingReusedConnections(t, engine.Handler())+"\"}]\n")
	client := newClient(t, false)
	const concurrent, sequential = 8, 20

	// Concurrent requests leave as many idle connections.
	engine.SetFaults(simulated.Faults{Hang: true})
	var results []<-chan response
	for range concurrent {
		results = append(results, startChat(t.Context(), client, b.url, chatBody("demo", "Hello", 1, true)))
	}
	eventually(t, "all requests have reached the engine, or one has failed", func() bool {
		return engine.Stats().InFlight == concurrent || b.sumMetric(t, "berth_requests_total", `route="/chat/completions"`) > 0
	})
	engine.SetFaults(simulated.Faults{})
	for _, result := range results {
		if got := waitResponse(t, result); !got.isComplete() {
			t.Errorf("got %v, want a complete stream", got)
		}
	}
	for range sequential {
		if got := chat(t.Context(), client, b.url, chatBody("demo", "Hello", 1, true)); !got.isComplete() {
			t.Errorf("got %v, want a complete stream", got)
		}
	}
	if b.sumMetric(t, "berth_retries_total", `reason="broken"`) == 0 {
		t.Error("no connection was stale, so the test proves nothing")
	}
	if stats := engine.Stats(); stats.Requests != concurrent+sequential {
		t.Errorf("the engine received %d requests, want %d", stats.Requests, concurrent+sequential)
	}
}

// serveClosingReusedConnections serves a handler like an engine whose keep-alive timeout expires on
// every reuse: the second request on a connection closes the connection without a response.
func serveClosingReusedConnections(t *testing.T, h http.Handler) string {
	type usedKey struct{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Value(usedKey{}).(*atomic.Bool).Swap(true) {
			panic(http.ErrAbortHandler)
		}
		h.ServeHTTP(w, r)
	}))
	s.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, usedKey{}, new(atomic.Bool))
	}
	s.Start()
	t.Cleanup(s.Close)
	return s.URL
}

func TestAgentHidesIdleConnectionsThatTheEngineClosed(t *testing.T) {
	t.Parallel()
	engine := simulated.New(simulated.Config{PrefillTokensPerSecond: 1e6, DecodeStep: time.Millisecond})
	t.Cleanup(engine.Close)
	a := startAgent(t, serveClosingReusedConnections(t, engine.Handler()), 4)
	b := serve(t, agentConfig("", a.url))
	client := newClient(t, false)
	for range 20 {
		if got := chat(t.Context(), client, b.url, chatBody("demo", "Hello", 1, true)); !got.isComplete() {
			t.Errorf("got %v, want a complete stream", got)
		}
	}
}
