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

// engineAt is the backend of an engine with that URL.
func engineAt(t *testing.T, url string) llmserver.Backend {
	backend, err := llmserver.DialHTTP(llmserver.Endpoint{URL: url, ConnectTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(backend.Close)
	return backend
}

// An engine that dies with a request in hand may have begun the work, so the ingress must not be told that it can send
// it elsewhere, as it is where no connection could be made at first.
func TestRequestThatTheEngineMayHaveHadIsBrokenNotRefused(t *testing.T) {
	s := newStand(t, 1, nil, func(c *Config) { c.Engine = engineAt(t, dyingServer(t, ok("{}"))) })
	if a := s.chat(""); a.StatusCode != http.StatusOK {
		t.Fatalf("the first request: %s", a.Status)
	}
	resp, err := s.send(http.MethodPost, "/v1/chat/completions", "{}", headerToken, s.reserved().String())
	if err == nil {
		resp.Body.Close()
		t.Errorf("the second request was answered %s, refused as %q", resp.Status, resp.Header.Get(headerRefused))
	}
	<-s.idle()
	s.wantRefusal(s.chat(""), http.StatusServiceUnavailable, "engine_down", "engine_down") // nothing was sent of this one
}

func TestEngineThatCannotBeReachedIsLoggedOnce(t *testing.T) {
	var log strings.Builder
	away := &sometimes{Backend: unreachable(t)}
	s := newStand(t, 1, nil, func(c *Config) {
		away.engine, c.Engine = c.Engine, away
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	for range 5 {
		s.chat("")
	}
	if strings.Count(log.String(), "level=WARN") != 1 || !strings.Contains(log.String(), "refused") {
		t.Errorf("during the outage the log says %q", log.String())
	}
	away.back.Store(true)
	for range 5 {
		s.chat("")
	}
	if strings.Count(log.String(), "the engine is reached again") != 1 || strings.Count(log.String(), "\n") != 2 {
		t.Errorf("after the outage the log says %q", log.String())
	}
}

// sometimes is an engine that cannot be reached until it is back.
type sometimes struct {
	llmserver.Backend
	engine llmserver.Backend
	back   atomic.Bool
}

func (s *sometimes) Do(req *http.Request, t llmserver.Token) (*http.Response, llmserver.Report, error) {
	if s.back.Load() {
		return s.engine.Do(req, t)
	}
	return s.Backend.Do(req, t)
}

func TestPathAndQueryReachTheEngineAsTheyAre(t *testing.T) {
	var uri atomic.Pointer[string]
	s := newStand(t, 1, func(_ http.ResponseWriter, r *http.Request) { uri.Store(&r.RequestURI) })
	for _, want := range []string{"/v1/models/org%2Fname", "/v1/models/a%20b?x=1&y=%2F"} {
		if s.call(http.MethodGet, want, ""); *uri.Load() != want {
			t.Errorf("%s arrived as %s", want, *uri.Load())
		}
	}
}

// The bytes of bodies are bounded together, and responses take minutes.
func TestBodyIsNotHeldForTheTimeOfTheResponse(t *testing.T) {
	end := make(chan struct{})
	s := newStand(t, 1, func(w http.ResponseWriter, _ *http.Request) {
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
	if held := s.agent.bodies.held.Load(); held != 0 {
		t.Errorf("%d bytes are held though the engine has the request", held)
	}
	close(end)
}

func TestBodyOfARefusedRequestIsNotHeld(t *testing.T) {
	s := newStand(t, 1, nil)
	s.reserved()
	s.wantRefusal(s.chat(""), http.StatusTooManyRequests, "slots_full", "full")
	s.wantRefusal(s.chat(uuid.NewString()), http.StatusConflict, "unknown_slot_token", "unknown_token")
	if held := s.agent.bodies.held.Load(); held != 0 {
		t.Errorf("%d bytes are held", held)
	}
}

// An upload takes time. The report of its refusal must be no older than the refusal, or it would show room.
func TestRefusalAfterASlowUploadReportsWhatIsOngoingThen(t *testing.T) {
	s := newStand(t, 1, nil)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: agent\r\nContent-Length: 2\r\n\r\n{")
	eventually(t, "the beginning of the upload", func() bool { return s.agent.bodies.held.Load() > 0 })
	s.reserved()
	io.WriteString(conn, "}")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if report, _ := readReport(resp.Header); resp.StatusCode != http.StatusTooManyRequests || report != s.headerReport() {
		t.Errorf("it was answered %s with the report %+v; want %+v", resp.Status, report, s.headerReport())
	}
}

// headerReport is what a header would say now to a caller without a name.
func (s *stand) headerReport() llmserver.Report {
	r := s.agent.table.Report()
	r.Limit = 0
	return r
}

// The read deadline of an upload must not outlive it: net/http takes its end for that of the client.
func TestResponseMayTakeLongerThanAnUploadMayBeSilent(t *testing.T) {
	const silence = 50 * time.Millisecond
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		s := newStand(t, 1, func(w http.ResponseWriter, r *http.Request) {
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
			if a, err := s.try(http.MethodPost, "/v1/completions", "{}"); err != nil || a.text != "late" || a.Proto != protocol {
				t.Errorf("%q, %v", a.text, err)
			}
		}
	}
}

// An ingress that reads nothing any more would keep its slot for ever.
func TestSlotOfACallerThatDoesNotReadIsGivenBack(t *testing.T) {
	s := newStand(t, 1, func(w http.ResponseWriter, r *http.Request) {
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

// Who has read the last byte that it needs may ask for the slot at once, on another connection.
func TestSlotIsFreeWhenTheLastByteOfTheResponseArrives(t *testing.T) {
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
			s := newStand(t, 1, nil, func(config *Config) { config.Engine = engine })
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

// hanging is an engine that does not answer its health checks.
type hanging struct{ llmserver.Backend }

func (hanging) Probe(ctx context.Context) (llmserver.Report, error) {
	<-ctx.Done()
	return llmserver.Report{}, ctx.Err()
}

func TestHealthIsAnsweredInTimeThoughTheEngineHangs(t *testing.T) {
	s := newStand(t, 1, nil, func(c *Config) { c.Engine, c.ProbeTimeout = hanging{c.Engine}, 20*time.Millisecond })
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	resp, err := s.sendBody(ctx, http.MethodGet, "/health", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("it was answered %s", resp.Status)
	}
}

// Names of callers are kept in memory, so they are bounded.
func TestHolderWithTooLongANameHasNone(t *testing.T) {
	s := newStand(t, 8, nil)
	for name, own := range map[string]string{strings.Repeat("a", maxHolder): "1", strings.Repeat("b", maxHolder+1): "0"} {
		a := s.call(http.MethodPost, "/internal/slots", `{"token":"`+uuid.NewString()+`"}`, headerHolder, name)
		if got := a.Header.Get(headerOwn); got != own {
			t.Errorf("a holder whose name has %d bytes is told of %s; want %s", len(name), got, own)
		}
	}
}

// The longest wait that can be written must be one.
func TestWaitIsClampedNotRefused(t *testing.T) {
	s := newStand(t, 1, nil)
	holder := s.reserved()
	answers := s.wait(uuid.New(), "9223372036854775807")
	eventually(t, "a wait", func() bool { return s.agent.Read().Waiting == 1 })
	s.agent.table.Release(holder)
	if a := <-answers; a.json()["accepted"] != true {
		t.Errorf("it was answered %s", a.text)
	}
}
