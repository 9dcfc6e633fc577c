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

// scene is one request on its way through an ingress, a network, an agent and an engine, all of them in this process, so
// that it can be held still anywhere and looked at from everywhere.
type scene struct {
	*testing.T
	engine    *simulated.Server
	fuse      *fuse // between agent and engine
	agent     *agent.Server
	agentHTTP *httptest.Server
	link      *middleman
	gates     gates // of the link

	ingress *ingress.Server
	pages   *berth // of the ingress
	drain   context.CancelFunc
	drained chan struct{}

	leave  context.CancelFunc
	result chan answer
	first  chan struct{} // closed when the client has the first byte of the answer
	other  uuid.UUID     // what somebody else holds at the agent
}

// stage puts up a scene in which nothing happens yet, with the settings for what will. It has one slot.
func stage(t *testing.T, listener net.Listener, e event) *scene {
	s := &scene{T: t, drained: make(chan struct{}), result: make(chan answer, 1), first: make(chan struct{}), other: uuid.New()}
	s.engine = engines(t, 1, simulated.Config{})[0]
	s.agent, s.agentHTTP, s.fuse = standIn(t, s.engine)
	s.link = between(t, listener, s.agentHTTP.Listener.Addr().String(), s.gates.fate)
	t.Cleanup(s.gates.openAll)
	var err error
	c := parsed(t, sharing("health_check_period_s: 3600, "+e.deployment, s.link.url())+e.model)
	if s.ingress, err = ingress.New(c, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	s.pages = &berth{url: "http://" + s.ingress.Address(), admin: "http://" + s.ingress.AdminAddress()}
	ctx, drain := context.WithCancel(context.Background())
	s.drain = drain
	go func() {
		defer close(s.drained)
		if err := s.ingress.Serve(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		drain()
		s.ingress.Close()
		<-s.drained
	})
	eventually(t, "the ingress has probed its replica", func() bool { return s.link.seen[reply].Load() >= 2 })
	return s
}

// standIn runs an agent with one slot in front of an engine.
func standIn(t *testing.T, e *simulated.Server) (*agent.Server, *httptest.Server, *fuse) {
	t.Helper()
	backend, err := llmserver.DialHTTP(llmserver.Endpoint{URL: e.URL()})
	if err != nil {
		t.Fatal(err)
	}
	f := &fuse{Backend: backend, lit: make(chan struct{})}
	a := agent.New(agent.Config{Engine: f, Limit: 1, MaxBodyBytes: 1 << 20, ProbeTimeout: patience, Log: slog.New(slog.DiscardHandler)})
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

func parsed(t *testing.T, text string) *config.Config {
	t.Helper()
	c, _, err := config.Parse([]byte(text), "scene.yaml", config.Checks{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// begin sends the request.
func (s *scene) begin(tokens int) {
	ctx, leave := context.WithCancel(context.WithoutCancel(s.Context()))
	s.leave = leave
	s.Cleanup(leave)
	client := newClient(s.T, false)
	go func() {
		resp, err := send(ctx, client, s.pages.url, ask("demo", "Hello", tokens, true))
		if err != nil {
			s.result <- answer{err: err}
			return
		}
		resp.Body = &noticed{resp.Body, sync.OnceFunc(func() { close(s.first) })}
		s.result <- read(resp)
	}()
}

// noticed tells of the first bytes that are read.
type noticed struct {
	io.ReadCloser
	notice func()
}

func (n *noticed) Read(p []byte) (int, error) {
	count, err := n.ReadCloser.Read(p)
	if count > 0 {
		n.notice()
	}
	return count, err
}

// counts are those of one side.
type counts struct{ reserved, running, waiting int }

func (s *scene) atAgent() counts {
	now := s.agent.Read()
	return counts{now.Reserved, now.Running, now.Waiting}
}

func (s *scene) atIngress() counts {
	slots := func(state string) int { return int(s.pages.sum(s.T, "berth_slots", `state="`+state+`"`)) }
	return counts{slots("reserved"), slots("running"), int(s.pages.sum(s.T, "berth_queue_length"))}
}

// fate is what became of the request at the engine.
func (s *scene) fate() string {
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

// reserve takes the agent's only slot for somebody else.
func (s *scene) reserve() {
	s.control(http.MethodPost, "/internal/slots", fmt.Sprintf(`{"token":%q,"lease_s":60}`, s.other))
}

// unreserve gives it back.
func (s *scene) unreserve() {
	s.control(http.MethodDelete, "/internal/slots/"+s.other.String(), "")
}

func (s *scene) control(method, path, body string) {
	s.Helper()
	req, err := http.NewRequest(method, s.agentHTTP.URL+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	resp, err := newClient(s.T, false).Do(req)
	if err != nil {
		return // the agent is dead
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		s.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, text)
	}
}

// crowd has nobody accept connections to the agent, and fills the place before the door.
func (s *scene) crowd() {
	if runtime.GOOS != "linux" {
		s.Skip("a full backlog does not keep connections waiting here")
	}
	s.gates.close(arrival)
	for _, accepted := range []int64{1, 0} {
		before := s.link.seen[arrival].Load()
		conn, err := net.DialTimeout("tcp", s.link.listener.Addr().String(), patience)
		if err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() { conn.Close() })
		eventually(s.T, "the door is crowded", func() bool { return s.link.seen[arrival].Load() == before+accepted })
	}
}

// replace has the ingress go by a configuration in which another replica is in the place of this one.
func (s *scene) replace() {
	_, other, _ := standIn(s.T, engines(s.T, 1, simulated.Config{})[0])
	if err := s.ingress.Apply(parsed(s.T, sharing("health_check_period_s: 3600", other.URL))); err != nil {
		s.Fatal(err)
	}
}

// fuse is an engine in whose hands the agent panics, once it is lit.
type fuse struct {
	llmserver.Backend
	lit chan struct{}
}

func (f *fuse) Do(req *http.Request, t llmserver.Token) (*http.Response, llmserver.Report, error) {
	ctx, stop := context.WithCancel(req.Context())
	go func() {
		defer stop()
		select {
		case <-f.lit:
		case <-ctx.Done():
		}
	}()
	resp, report, err := f.Backend.Do(req.WithContext(ctx), t)
	if err != nil {
		f.burn()
		return nil, report, err
	}
	resp.Body = &fusedBody{resp.Body, f}
	return resp, report, nil
}

func (f *fuse) burn() {
	select {
	case <-f.lit:
		panic("the fuse was lit")
	default:
	}
}

type fusedBody struct {
	io.ReadCloser
	*fuse
}

func (b *fusedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.burn()
	return n, err
}
