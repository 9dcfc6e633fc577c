package e2e

import (
	"context"
	"net/http"
	"syscall"
	"testing"
	"time"

	"berth/llmserver/simulated"
)

func TestADrainServesEveryRequestThatIsRunningOrWaiting(t *testing.T) {
	t.Parallel()
	const slots, clients = 10, 30
	engine := engines(t, 1, simulated.Config{DecodeStep: 5 * time.Millisecond})[0]
	b := serve(t, demo("max_ongoing_requests: 10", engine))
	protocols := []*http.Client{newClient(t, false), newClient(t, true)}
	var results []<-chan answer
	engine.Engine().SetFaults(simulated.Faults{Hang: true})
	for i := range clients {
		results = append(results, begin(t.Context(), protocols[i%2], b.url, ask("demo", "Hello", 40, i%4 < 2)))
	}
	arrived(t, engine, slots)
	eventually(t, "the others wait", func() bool { return b.sum(t, "berth_queue_length") == clients-slots })

	b.signal(t, syscall.SIGTERM)
	eventually(t, "nothing more is accepted", func() bool { return b.get(t, b.url+"/livez").err != nil })
	engine.Engine().SetFaults(simulated.Faults{})
	for i, result := range results {
		if got := expect(t, result); !got.complete() {
			t.Errorf("client %d got %v", i, got)
		}
	}
	if status := b.status(t); status != 0 {
		t.Errorf("berth ended with status %d, want 0", status)
	}
	if now := engine.Engine().Stats(); now.Completed != clients || now.Aborted != 0 {
		t.Errorf("the engine completed %d and aborted %d of %d", now.Completed, now.Aborted, clients)
	}
}

func TestDuringTheDrainDelayBerthIsUnreadyAndServesOn(t *testing.T) {
	t.Parallel()
	engine := engines(t, 1, simulated.Config{})[0]
	b := serve(t, `
http: {address: "127.0.0.1:0", drain_delay_s: 10}
admin: {address: "127.0.0.1:0"}
llm_configs:
`+model("demo", "", engine))
	b.signal(t, syscall.SIGTERM)
	eventually(t, "berth is unready", func() bool { return b.get(t, b.url+"/readyz").status == http.StatusServiceUnavailable })
	if got := chat(t.Context(), newClient(t, false), b.url, ask("demo", "Hello", 4, true)); !got.complete() {
		t.Errorf("a new client got %v", got)
	}
	if live := b.get(t, b.url+"/livez"); live.status != http.StatusOK {
		t.Errorf("/livez says %v", live)
	}
	if status := b.status(t); status != 0 {
		t.Errorf("berth ended with status %d, want 0", status)
	}
}

func TestASecondSignalEndsBerthAtOnce(t *testing.T) {
	t.Parallel()
	engine := engines(t, 1, simulated.Config{})[0]
	b := serve(t, demo("", engine))
	resp := open(t, t.Context(), newClient(t, false), b.url, endless("demo"))
	b.signal(t, syscall.SIGTERM)
	eventually(t, "the drain begins", func() bool { return b.log.has("draining") })
	b.signal(t, syscall.SIGINT)
	if status := b.status(t); status == 0 {
		t.Error("berth ended with status 0, as if it had finished")
	}
	if got := read(resp); got.err == nil {
		t.Errorf("the stream ended as if it were complete: %v", got)
	}
	over(t, engine, 1)
}

func TestTheDrainTimeoutCutsWhatIsStillRunning(t *testing.T) {
	t.Parallel()
	engine := engines(t, 1, simulated.Config{})[0]
	b := serve(t, `
http: {address: "127.0.0.1:0", drain_timeout_s: 0.2}
admin: {address: "127.0.0.1:0"}
llm_configs:
`+model("demo", "", engine))
	resp := open(t, context.WithoutCancel(t.Context()), newClient(t, false), b.url, endless("demo"))
	b.signal(t, syscall.SIGTERM)
	if status := b.status(t); status != 0 {
		t.Errorf("berth ended with status %d, want 0", status)
	}
	if got := read(resp); got.err == nil {
		t.Errorf("the stream ended as if it were complete: %v", got)
	}
	over(t, engine, 1)
}
