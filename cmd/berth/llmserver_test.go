package main

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/llmserver"
	"berth/llmserver/agent"
	"berth/llmserver/simulated"
)

// An agent beyond loopback needs a secret, so a doubtful address must not count as loopback.
func TestAgentTreatsOnlyLoopbackAsLocal(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:8100": true, "127.8.8.8:1": true, "[::1]:8100": true, "localhost:8100": true, "[::ffff:127.0.0.1]:1": true,
		":8100": false, "0.0.0.0:8100": false, "[::]:8100": false, "10.0.0.1:8100": false, "[fe80::1]:8100": false,
		"128.0.0.1:8100": false, "localhost.example.com:8100": false, "127.0.0.1.example.com:1": false, "agent:8100": false,
		"127.0.0.1": false, "": false, "[::ffff:10.0.0.1]:1": false, "0x7f.1:1": false,
	} {
		if got := onLoopback(address); got != want {
			t.Errorf("onLoopback(%q) = %t, want %t", address, got, want)
		}
	}
}

func TestAgentNeedsASecretBeyondLoopback(t *testing.T) {
	t.Setenv(secretVariable, "")
	for address, want := range map[string]string{
		"0.0.0.0:0": "reachable from other machines", ":0": "reachable from other machines",
		"127.0.0.1:0": "--max-ongoing-requests", // the next problem
	} {
		f := agentFlags{engine: "http://127.0.0.1:1", address: address, limit: 1}
		if strings.HasPrefix(want, "--") {
			f.limit = 0
		}
		if err := f.run(io.Discard, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("on %s: %v, want %s", address, err, want)
		}
	}
}

// A runningAgent is berth llmserver in front of an engine that never responds, with one request in
// flight.
type runningAgent struct {
	url    string
	engine *simulated.Server
	log    *journal
	stop   chan os.Signal
	ended  chan error
	reply  chan *http.Response // of the request; nil if it failed
}

func startAgent(t *testing.T, drainTimeout time.Duration) *runningAgent {
	t.Helper()
	a := &runningAgent{log: new(journal), stop: make(chan os.Signal, 2), ended: make(chan error, 1), reply: make(chan *http.Response, 1)}
	var err error
	if a.engine, err = simulated.Listen("127.0.0.1:0", simulated.Config{ID: "e"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.engine.Close() })
	a.engine.Engine().SetFaults(simulated.Faults{Hang: true})
	backend, err := llmserver.DialHTTP(llmserver.Endpoint{ID: "e", URL: a.engine.URL(), ConnectTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { backend.Close() })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a.url = "http://" + listener.Addr().String()
	log := slog.New(slog.NewTextHandler(a.log, nil))
	server := agent.New(agent.Config{Engine: backend, Limit: 2, MaxBodyBytes: 1 << 20, Log: log})
	go func() { a.ended <- agentFlags{drainTimeout: drainTimeout}.serve(server, listener, a.stop, log) }()
	go func() { a.reply <- a.post(t) }()
	eventually(t, "the request is at the engine", func() bool { return a.engine.Engine().Stats().InFlight == 1 })
	return a
}

func (a *runningAgent) post(t *testing.T) *http.Response {
	body := `{"model":"demo","max_tokens":2,"messages":[{"role":"user","content":"Hi"}]}`
	resp, err := http.Post(a.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		return nil
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func (a *runningAgent) wait(t *testing.T) {
	t.Helper()
	select {
	case err := <-a.ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the agent does not end")
	}
}

func TestAgentDrainWaitsForRunningRequests(t *testing.T) {
	a := startAgent(t, time.Minute)
	a.stop <- syscall.SIGTERM
	eventually(t, "the drain begins", func() bool { return a.log.has("draining") })
	eventually(t, "new requests are rejected", func() bool {
		resp := a.post(t)
		return resp != nil && resp.StatusCode == http.StatusServiceUnavailable
	})
	select {
	case err := <-a.ended:
		t.Fatalf("the agent ended before its request: %v", err)
	default:
	}
	a.engine.Engine().SetFaults(simulated.Faults{})
	if resp := <-a.reply; resp == nil || resp.StatusCode != http.StatusOK {
		t.Errorf("the running request got %v", resp)
	}
	a.wait(t)
}

func TestAgentDrainTimeoutClosesRemainingRequests(t *testing.T) {
	a := startAgent(t, 10*time.Millisecond)
	a.stop <- syscall.SIGTERM
	a.wait(t)
	if !a.log.has("drain timeout expired") {
		t.Error("the drain timeout is not logged")
	}
	if resp := <-a.reply; resp != nil {
		t.Errorf("the request got %s", resp.Status)
	}
}
