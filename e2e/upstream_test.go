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
			for range 2 { // the first probes are over by then
				if got := chat(t.Context(), client, b.url, chatBody("demo", "Hello", 4, true)); !got.isComplete() {
					t.Fatalf("got %v, want a whole stream", got)
				}
			}
			if failure == "process gone" {
				fleet[0].Close()
			} else {
				fleet[0].Engine().SetFaults(simulated.Faults{Cut: simulated.CutReset})
			}
			for range 4 { // whoever's turn it is
				if got := chat(t.Context(), client, b.url, chatBody("demo", "Hello", 4, true)); !got.isComplete() {
					t.Fatalf("got %v, want a whole stream", got)
				}
			}
			if b.sumMetric(t, "berth_retries_total", `model="demo"`) == 0 {
				t.Error("no retry was needed, so the test shows nothing")
			}
			if now := fleet[1].Engine().Stats(); now.Completed != 5 {
				t.Errorf("the other replica completed %d requests, want 1 of 2 and 4 of 4", now.Completed)
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
	const together, apart = 8, 20

	// As many idle connections are left as there were requests at the same time.
	engine.SetFaults(simulated.Faults{Hang: true})
	var results []<-chan response
	for range together {
		results = append(results, startChat(t.Context(), client, b.url, chatBody("demo", "Hello", 1, true)))
	}
	eventually(t, "all requests are at the engine, or one has failed", func() bool {
		return engine.Stats().InFlight == together || b.sumMetric(t, "berth_requests_total", `route="/chat/completions"`) > 0
	})
	engine.SetFaults(simulated.Faults{})
	for _, result := range results {
		if got := waitResponse(t, result); !got.isComplete() {
			t.Errorf("got %v, want a whole stream", got)
		}
	}
	for range apart {
		if got := chat(t.Context(), client, b.url, chatBody("demo", "Hello", 1, true)); !got.isComplete() {
			t.Errorf("got %v, want a whole stream", got)
		}
	}
	if b.sumMetric(t, "berth_retries_total", `reason="broken"`) == 0 {
		t.Error("no connection was ever stale, so the test shows nothing")
	}
	if did := engine.Stats(); did.Requests != together+apart {
		t.Errorf("the engine had %d requests, want %d", did.Requests, together+apart)
	}
}

// hangingUp serves a handler like an engine whose keep-alive has run out whenever a connection is used again: it closes the
// connection as the second request arrives, unanswered.
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
			t.Errorf("got %v, want a whole stream", got)
		}
	}
}
