package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/llmserver/simulated"
)

func TestDrainServesEveryRunningAndQueuedRequest(t *testing.T) {
	t.Parallel()
	const slots, clients = 10, 30
	engine := startEngines(t, 1, simulated.Config{DecodeStep: 5 * time.Millisecond})[0]
	b := serve(t, demoConfig("max_ongoing_requests: 10", engine))
	protocols := []*http.Client{newClient(t, false), newClient(t, true)}
	var results []<-chan response
	engine.Engine().SetFaults(simulated.Faults{Hang: true})
	for i := range clients {
		results = append(results, startChat(t.Context(), protocols[i%2], b.url, chatBody("demo", "Hello", 40, i%4 < 2)))
	}
	waitInFlight(t, engine, slots)
	eventually(t, "the other requests are queued", func() bool { return b.sumMetric(t, "berth_queue_length") == clients-slots })

	b.signal(t, syscall.SIGTERM)
	eventually(t, "the listener is closed", func() bool { return b.getPage(t, b.url+"/livez").err != nil })
	engine.Engine().SetFaults(simulated.Faults{})
	for i, result := range results {
		if got := waitResponse(t, result); !got.isComplete() {
			t.Errorf("client %d got %v", i, got)
		}
	}
	if status := b.waitExit(t); status != 0 {
		t.Errorf("berth exited with status %d, want 0", status)
	}
	if now := engine.Engine().Stats(); now.Completed != clients || now.Aborted != 0 {
		t.Errorf("the engine completed %d and aborted %d of %d", now.Completed, now.Aborted, clients)
	}
}

func TestDrainDelayIsUnreadyAndServesOn(t *testing.T) {
	t.Parallel()
	engine := startEngines(t, 1, simulated.Config{})[0]
	b := serve(t, `
http: {address: "127.0.0.1:0", drain_delay_s: 10}
admin: {address: "127.0.0.1:0"}
llm_configs:
`+modelConfig("demo", "", engine))
	b.signal(t, syscall.SIGTERM)
	eventually(t, "berth is unready", func() bool { return b.getPage(t, b.url+"/readyz").status == http.StatusServiceUnavailable })
	if got := chat(t.Context(), newClient(t, false), b.url, chatBody("demo", "Hello", 4, true)); !got.isComplete() {
		t.Errorf("a new client got %v", got)
	}
	if live := b.getPage(t, b.url+"/livez"); live.status != http.StatusOK {
		t.Errorf("/livez: %v", live)
	}
	if status := b.waitExit(t); status != 0 {
		t.Errorf("berth exited with status %d, want 0", status)
	}
}

func TestSecondSignalEndsBerthAtOnce(t *testing.T) {
	t.Parallel()
	engine := startEngines(t, 1, simulated.Config{})[0]
	b := serve(t, demoConfig("", engine))
	resp := openStream(t, t.Context(), newClient(t, false), b.url, endlessChatBody("demo"))
	b.signal(t, syscall.SIGTERM)
	eventually(t, "berth is draining", func() bool { return b.stderr.contains("msg=draining running=1 queued=0 ") })
	if !b.stderr.contains("a second signal ends at once") {
		t.Error("the log does not say what a second signal does")
	}
	b.signal(t, syscall.SIGINT)
	if status := b.waitExit(t); status != 130 {
		t.Errorf("berth exited with status %d after the second signal, want 130", status)
	}
	if !b.stderr.contains(`msg="second signal, ending at once" signal=interrupt running=1 queued=0`) {
		t.Error("the second signal is not logged")
	}
	if got := readResponse(resp); got.err == nil {
		t.Errorf("the stream looks complete: %v", got)
	}
	waitAborted(t, engine, 1)
}

func TestDrainTimeoutCutsRunningRequests(t *testing.T) {
	t.Parallel()
	engine := startEngines(t, 1, simulated.Config{})[0]
	b := serve(t, `
http: {address: "127.0.0.1:0", drain_timeout_s: 0.2}
admin: {address: "127.0.0.1:0"}
llm_configs:
`+modelConfig("demo", "", engine))
	resp := openStream(t, context.WithoutCancel(t.Context()), newClient(t, false), b.url, endlessChatBody("demo"))
	b.signal(t, syscall.SIGTERM)
	if status := b.waitExit(t); status != 0 {
		t.Errorf("berth exited with status %d, want 0", status)
	}
	if got := readResponse(resp); got.err == nil {
		t.Errorf("the stream looks complete: %v", got)
	}
	waitAborted(t, engine, 1)
}

// A reload while draining has the same effects as any other: removed API keys are refused, and a
// renamed log is reopened.
func TestDrainReloadsOnSIGHUP(t *testing.T) {
	t.Parallel()
	engine := startEngines(t, 1, simulated.Config{})[0]
	access := filepath.Join(t.TempDir(), "access.jsonl")
	config := func(keys string) string {
		return fmt.Sprintf("http: {address: \"127.0.0.1:0\", drain_delay_s: 600}\nadmin: {address: \"127.0.0.1:0\"}\naccess_log: %q\nauth: {keys: [%s]}\nllm_configs:\n", access, keys) +
			modelConfig("demo", "", engine)
	}
	const kept, revoked = "{name: kept, key: sk-kept}", "{name: revoked, key: sk-revoked}"
	b := serve(t, config(kept+", "+revoked))
	client := newClient(t, false)
	status := func(key string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/v1/chat/completions", strings.NewReader(chatBody("demo", "Hello", 4, true)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return readResponse(resp).status
	}
	b.signal(t, syscall.SIGTERM)
	eventually(t, "berth is draining", func() bool { return b.stderr.contains("draining") })
	if got := status("sk-revoked"); got != http.StatusOK {
		t.Fatalf("before the reload the key gets status %d", got)
	}
	if err := os.Rename(access, access+".1"); err != nil {
		t.Fatal(err)
	}
	b.reload(t, config(kept))
	if !b.stderr.contains("configuration reloaded") {
		t.Error("the reload is not logged")
	}
	if got := status("sk-revoked"); got != http.StatusUnauthorized {
		t.Errorf("the revoked key gets status %d, want 401", got)
	}
	if got := status("sk-kept"); got != http.StatusOK {
		t.Errorf("the kept key gets status %d, want 200", got)
	}
	eventually(t, "the reopened log contains both requests", func() bool {
		written, _ := os.ReadFile(access)
		return strings.Count(string(written), "\n") == 2
	})
	b.signal(t, syscall.SIGTERM)
	b.waitExit(t)
}

func TestSecondSignalEndsAnAgentAtOnce(t *testing.T) {
	t.Parallel()
	engine := startEngines(t, 1, simulated.Config{})[0]
	a := startAgent(t, engine.URL(), 1)
	resp := openStream(t, t.Context(), newClient(t, false), a.url, endlessChatBody("demo"))
	stopped := a.berth
	a.berth = nil // no check that it is idle
	stopped.signal(t, syscall.SIGINT)
	eventually(t, "the agent is draining", func() bool {
		return stopped.stderr.contains("msg=draining running=1 queued=0 ") && stopped.stderr.contains("a second signal ends at once")
	})
	stopped.signal(t, syscall.SIGTERM)
	if status := stopped.waitExit(t); status != 143 {
		t.Errorf("the agent exited with status %d after the second signal, want 143", status)
	}
	if got := readResponse(resp); got.err == nil {
		t.Errorf("the stream looks complete: %v", got)
	}
	waitAborted(t, engine, 1)
}
