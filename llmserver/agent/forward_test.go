package agent

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth/llmserver"
)

// engineAt returns the backend of an engine with that URL.
func engineAt(t *testing.T, url string) llmserver.Backend {
	backend, err := llmserver.DialHTTP(llmserver.Endpoint{URL: url, ConnectTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(backend.Close)
	return backend
}

// An engine that dies after receiving a request may have begun the work. The ingress must not get a
// refusal for it, which would allow a retry elsewhere.
func TestAgentRequestThatMayHaveArrivedIsBrokenNotRefused(t *testing.T) {
	s := newTestAgent(t, 1, nil, func(c *Config) { c.Engine = engineAt(t, dyingServer(t, ok("{}"))) })
	if a := s.chat(""); a.StatusCode != http.StatusOK {
		t.Fatalf("the first request: %s", a.Status)
	}
	resp, err := s.send(http.MethodPost, "/v1/chat/completions", "{}", headerToken, s.mustReserve().String())
	if err == nil {
		resp.Body.Close()
		t.Errorf("the second request got %s, refused as %q", resp.Status, resp.Header.Get(headerRefused))
	}
	<-s.idle()
	s.wantRefusal(s.chat(""), http.StatusServiceUnavailable, "engine_down", "engine_down") // this one was not sent
}

func TestAgentLogsUnreachableEngineOnce(t *testing.T) {
	var log strings.Builder
	away := &flakyEngine{Backend: unreachableEngine(t)}
	s := newTestAgent(t, 1, nil, func(c *Config) {
		away.engine, c.Engine = c.Engine, away
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	for range 5 {
		s.chat("")
	}
	if strings.Count(log.String(), "level=WARN") != 1 || !strings.Contains(log.String(), "refused") {
		t.Errorf("during the outage the log is %q", log.String())
	}
	away.back.Store(true)
	for range 5 {
		s.chat("")
	}
	if strings.Count(log.String(), "engine reachable again") != 1 || strings.Count(log.String(), "\n") != 2 {
		t.Errorf("after the outage the log is %q", log.String())
	}
}

// flakyEngine is an engine that is unreachable until back is set.
type flakyEngine struct {
	llmserver.Backend
	engine llmserver.Backend
	back   atomic.Bool
}

func (s *flakyEngine) Do(req *http.Request, t llmserver.Token) (*http.Response, llmserver.Report, error) {
	if s.back.Load() {
		return s.engine.Do(req, t)
	}
	return s.Backend.Do(req, t)
}

func TestAgentForwardsPathAndQueryUnchanged(t *testing.T) {
	var uri atomic.Pointer[string]
	s := newTestAgent(t, 1, func(_ http.ResponseWriter, r *http.Request) { uri.Store(&r.RequestURI) })
	for _, want := range []string{"/v1/models/org%2Fname", "/v1/models/a%20b?x=1&y=%2F"} {
		if s.call(http.MethodGet, want, ""); *uri.Load() != want {
			t.Errorf("%s arrived as %s", want, *uri.Load())
		}
	}
}

// The total of buffered bytes is bounded, and responses take minutes.
func TestAgentReleasesBodyBeforeTheResponse(t *testing.T) {
	end := make(chan struct{})
	s := newTestAgent(t, 1, func(w http.ResponseWriter, _ *http.Request) {
		http.NewResponseController(w).Flush()
		w.Write([]byte("."))
		http.NewResponseController(w).Flush()
		<-end
	})
	resp, err := s.send(http.MethodPost, "/v1/completions", `{"prompt":"x"}`)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if held := s.agent.bodies.Budget.Held(); held != 0 {
		t.Errorf("%d bytes are held though the engine has the request", held)
	}
	close(end)
}

func TestAgentReleasesBodyOfRefusedRequest(t *testing.T) {
	s := newTestAgent(t, 1, nil)
	s.mustReserve()
	s.wantRefusal(s.chat(""), http.StatusTooManyRequests, "slots_full", "full")
	s.wantRefusal(s.chat(uuid.NewString()), http.StatusConflict, "unknown_slot_token", "unknown_token")
	if held := s.agent.bodies.Budget.Held(); held != 0 {
		t.Errorf("%d bytes are held", held)
	}
}

// An upload takes time. The report of its refusal must be as recent as the refusal, or it would
// show free slots.
func TestAgentRefusalCarriesACurrentReport(t *testing.T) {
	s := newTestAgent(t, 1, nil)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: agent\r\nContent-Length: 2\r\n\r\n{")
	eventually(t, "the beginning of the upload", func() bool { return s.agent.bodies.Budget.Held() > 0 })
	s.mustReserve()
	io.WriteString(conn, "}")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if report, _ := parseReportHeader(resp.Header); resp.StatusCode != http.StatusTooManyRequests || report != s.headerReport() {
		t.Errorf("it : response %s with the report %+v; want %+v", resp.Status, report, s.headerReport())
	}
}

// headerReport returns the current report in a header for an unnamed caller.
func (s *testAgent) headerReport() llmserver.Report {
	r := s.agent.table.Report()
	r.Limit = 0
	return r
}

// The read deadline of an upload must not outlive it: net/http would take its expiry for a
// disconnect.
func TestAgentBodyTimeoutDoesNotLimitTheResponse(t *testing.T) {
	const silence = 50 * time.Millisecond
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		s := newTestAgent(t, 1, func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-time.After(4 * silence):
				io.WriteString(w, "late")
			}
		}, func(c *Config) { c.BodyTimeout = silence })
		if protocol == "HTTP/2.0" {
			transport := &http.Transport{Protocols: new(http.Protocols)}
			transport.Protocols.SetUnencryptedHTTP2(true)
			defer transport.CloseIdleConnections()
			s.client.Transport = transport
		}
		for range 2 { // also on a connection that was used before
			if a, err := s.tryCall(http.MethodPost, "/v1/completions", "{}"); err != nil || a.text != "late" || a.Proto != protocol {
				t.Errorf("%q, %v", a.text, err)
			}
		}
	}
}

// An ingress that stops reading must not keep its slot for ever.
func TestAgentReleasesSlotOfCallerThatDoesNotRead(t *testing.T) {
	s := newTestAgent(t, 1, func(w http.ResponseWriter, r *http.Request) {
		for piece := make([]byte, 64<<10); r.Context().Err() == nil; {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	}, func(c *Config) { c.WriteTimeout = 50 * time.Millisecond })
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: agent\r\nContent-Length: 2\r\n\r\n{}")
	eventually(t, "the request", func() bool { return s.calls.Load() == 1 })
	eventually(t, "the slot", func() bool { return s.agent.Read().Ongoing == 0 })
}

// A client that has read the last byte may request the slot at once, on another connection.
func TestAgentSlotIsFreeWhenTheLastByteArrives(t *testing.T) {
	const events = "data: {}\n\ndata: [DONE]\n\n"
	large := strings.Repeat("x", 200_000)
	for name, c := range map[string]struct{ response, body string }{
		"a large body of known length": {ok(large), large},
		"events that end with the body": {
			fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(events), events),
			events,
		},
	} {
		t.Run(name, func(t *testing.T) {
			engine := rawEngine(t, func(conn net.Conn, _ *bufio.Reader) { io.WriteString(conn, c.response) })
			s := newTestAgent(t, 1, nil, func(config *Config) { config.Engine = engine })
			got := make([]byte, len(c.body))
			for range 200 {
				resp, err := s.send(http.MethodPost, "/v1/completions", "{}")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != c.body {
					t.Fatalf("%d bytes, %v", len(got), err)
				}
				if n := s.agent.Read().Ongoing; n != 0 {
					t.Fatalf("%d are ongoing behind the last byte", n)
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
}

// hangingEngine is an engine whose health checks hang.
type hangingEngine struct{ llmserver.Backend }

func (hangingEngine) Probe(ctx context.Context) (llmserver.Report, error) {
	<-ctx.Done()
	return llmserver.Report{}, ctx.Err()
}

func TestAgentHealthTimesOutWhenTheEngineHangs(t *testing.T) {
	s := newTestAgent(t, 1, nil, func(c *Config) { c.Engine, c.ProbeTimeout = hangingEngine{c.Engine}, 20*time.Millisecond })
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	resp, err := s.sendBody(ctx, http.MethodGet, "/health", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("the response is %s", resp.Status)
	}
}

// Holder names are kept in memory, so their length is bounded.
func TestAgentIgnoresTooLongHolderNames(t *testing.T) {
	s := newTestAgent(t, 8, nil)
	for name, own := range map[string]string{strings.Repeat("a", maxHolderName): "1", strings.Repeat("b", maxHolderName+1): "0"} {
		a := s.call(http.MethodPost, "/internal/slots", `{"token":"`+uuid.NewString()+`"}`, headerHolder, name)
		if got := a.Header.Get(headerOwn); got != own {
			t.Errorf("the own count of a holder whose name has %d bytes is %s; want %s", len(name), got, own)
		}
	}
}

// The largest wait_ms must not overflow.
func TestAgentClampsWait(t *testing.T) {
	s := newTestAgent(t, 1, nil)
	holder := s.mustReserve()
	answers := s.wait(uuid.New(), "9223372036854775807")
	eventually(t, "a wait", func() bool { return s.agent.Read().Waiting == 1 })
	s.agent.table.Release(holder)
	if a := <-answers; a.json()["accepted"] != true {
		t.Errorf("the response is %s", a.text)
	}
}
