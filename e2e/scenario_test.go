package e2e

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"berth/config"
	"berth/ingress"
	"berth/llmserver"
	"berth/llmserver/agent"
	"berth/llmserver/simulated"
)

// scenario is one request through an ingress, a network, an agent and an engine, all in this
// process. The request can be paused in every phase and the state of every component inspected.
type scenario struct {
	*testing.T
	engine    *simulated.Server
	backend   *panickingBackend // between agent and engine
	agent     *agent.Server
	agentHTTP *httptest.Server
	proxy     *faultyProxy
	gates     legGates // of proxy

	ingress   *ingress.Server
	pages     *berth // HTTP client of the ingress's pages
	drain     context.CancelFunc
	drainDone chan struct{}

	disconnect context.CancelFunc
	result     chan response
	firstByte  chan struct{} // closed when the client has the first byte of the response
	otherToken uuid.UUID     // token of a slot that another client reserves at the agent
}

// newScenario starts a scenario with the settings of an event, without a request. The agent has one
// slot.
func newScenario(t *testing.T, listener net.Listener, e event) *scenario {
	s := &scenario{T: t, drainDone: make(chan struct{}), result: make(chan response, 1), firstByte: make(chan struct{}), otherToken: uuid.New()}
	s.engine = startEngines(t, 1, simulated.Config{})[0]
	s.agent, s.agentHTTP, s.backend = startInProcessAgent(t, s.engine)
	s.proxy = startProxy(t, listener, s.agentHTTP.Listener.Addr().String(), s.gates.wait)
	t.Cleanup(s.gates.openAll)
	var err error
	c := parseConfig(t, agentConfig("health_check_period_s: 3600, "+e.deployment, s.proxy.url())+e.model)
	if s.ingress, err = ingress.New(c, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	s.pages = &berth{url: "http://" + s.ingress.Address(), admin: "http://" + s.ingress.AdminAddress()}
	ctx, drain := context.WithCancel(context.Background())
	s.drain = drain
	go func() {
		defer close(s.drainDone)
		if err := s.ingress.Serve(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		drain()
		s.ingress.Close()
		<-s.drainDone
	})
	eventually(t, "the ingress has probed its replica", func() bool { return s.proxy.received[legControlReply].Load() >= 2 })
	return s
}

// startInProcessAgent starts an agent with one slot in front of an engine.
func startInProcessAgent(t *testing.T, e *simulated.Server) (*agent.Server, *httptest.Server, *panickingBackend) {
	t.Helper()
	backend, err := llmserver.DialHTTP(llmserver.Endpoint{URL: e.URL()})
	if err != nil {
		t.Fatal(err)
	}
	f := &panickingBackend{Backend: backend, triggered: make(chan struct{})}
	a := agent.New(agent.Config{Engine: f, Limit: 1, MaxBodyBytes: 1 << 20, ProbeTimeout: waitTimeout, Log: slog.New(slog.DiscardHandler)})
	h := httptest.NewUnstartedServer(a)
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	h.Start()
	t.Cleanup(func() {
		h.Config.Close()
		h.Close()
		backend.Close()
	})
	return a, h, f
}

// parseConfig parses a configuration. The test fails on errors.
func parseConfig(t *testing.T, text string) *config.Config {
	t.Helper()
	c, _, err := config.Parse([]byte(text), "scenario.yaml", config.Checks{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// startRequest sends the request in the background.
func (s *scenario) startRequest(tokens int) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	s.disconnect = cancel
	s.Cleanup(cancel)
	client := newClient(s.T, false)
	go func() {
		resp, err := postChat(ctx, client, s.pages.url, chatBody("demo", "Hello", tokens, true))
		if err != nil {
			s.result <- response{err: err}
			return
		}
		resp.Body = &firstReadBody{resp.Body, sync.OnceFunc(func() { close(s.firstByte) })}
		s.result <- readResponse(resp)
	}()
}

// firstReadBody calls onFirstRead when the first bytes are read.
type firstReadBody struct {
	io.ReadCloser
	onFirstRead func()
}

func (n *firstReadBody) Read(p []byte) (int, error) {
	count, err := n.ReadCloser.Read(p)
	if count > 0 {
		n.onFirstRead()
	}
	return count, err
}

// slotUsage is the number of reserved and running slots and of waiting requests at the agent or the
// ingress.
type slotUsage struct{ reserved, running, waiting int }

func (s *scenario) agentUsage() slotUsage {
	now := s.agent.Read()
	return slotUsage{now.Reserved, now.Running, now.Waiting}
}

func (s *scenario) ingressUsage() slotUsage {
	slots := func(state string) int { return int(s.pages.sumMetric(s.T, "berth_slots", `state="`+state+`"`)) }
	return slotUsage{slots("reserved"), slots("running"), int(s.pages.sumMetric(s.T, "berth_queue_length"))}
}

// engineOutcome returns the outcome of the request at the engine.
func (s *scenario) engineOutcome() string {
	switch now := s.engine.Engine().Stats(); {
	case now.Requests == 0:
		return "nothing"
	case now.Requests == 1 && now.Completed == 1:
		return "completed"
	case now.Requests == 1 && now.Aborted == 1:
		return "aborted"
	default:
		return fmt.Sprintf("%+v", now)
	}
}

// reserveOther reserves the agent's only slot for another client.
func (s *scenario) reserveOther() {
	s.callAgent(http.MethodPost, "/internal/slots", fmt.Sprintf(`{"token":%q,"lease_s":60}`, s.otherToken))
}

// releaseOther releases the slot of reserveOther.
func (s *scenario) releaseOther() {
	s.callAgent(http.MethodDelete, "/internal/slots/"+s.otherToken.String(), "")
}

// callAgent sends a control call to the agent.
func (s *scenario) callAgent(method, path, body string) {
	s.Helper()
	req, err := http.NewRequest(method, s.agentHTTP.URL+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	resp, err := newClient(s.T, false).Do(req)
	if err != nil {
		return // the agent has been closed
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		s.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, text)
	}
}

// fillBacklog stops accepting connections to the agent and fills the listener's backlog.
func (s *scenario) fillBacklog() {
	if runtime.GOOS != "linux" {
		s.Skip("connections do not wait for a full backlog on this system")
	}
	s.gates.close(legAccept)
	for _, accepted := range []int64{1, 0} {
		before := s.proxy.received[legAccept].Load()
		conn, err := net.DialTimeout("tcp", s.proxy.listener.Addr().String(), waitTimeout)
		if err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() { conn.Close() })
		eventually(s.T, "the backlog is full", func() bool { return s.proxy.received[legAccept].Load() == before+accepted })
	}
}

// replaceReplica reloads the ingress with a configuration that has another replica in place of this
// one.
func (s *scenario) replaceReplica() {
	_, other, _ := startInProcessAgent(s.T, startEngines(s.T, 1, simulated.Config{})[0])
	if err := s.ingress.Apply(parseConfig(s.T, agentConfig("health_check_period_s: 3600", other.URL))); err != nil {
		s.Fatal(err)
	}
}

// panickingBackend is a backend whose calls panic in the agent after triggered is closed.
type panickingBackend struct {
	llmserver.Backend
	triggered chan struct{}
}

func (f *panickingBackend) Do(req *http.Request, t llmserver.Token) (*http.Response, llmserver.Report, error) {
	ctx, stop := context.WithCancel(req.Context())
	go func() {
		defer stop()
		select {
		case <-f.triggered:
		case <-ctx.Done():
		}
	}()
	resp, report, err := f.Backend.Do(req.WithContext(ctx), t)
	if err != nil {
		f.panicIfTriggered()
		return nil, report, err
	}
	resp.Body = &panickingBody{resp.Body, f}
	return resp, report, nil
}

func (f *panickingBackend) panicIfTriggered() {
	select {
	case <-f.triggered:
		panic("panic injected by the test")
	default:
	}
}

type panickingBody struct {
	io.ReadCloser
	*panickingBackend
}

func (b *panickingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.panicIfTriggered()
	return n, err
}
