package agent

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth/llmserver"
)

// stand is an agent on a loopback port, in front of an engine that the test plays.
type stand struct {
	t      testing.TB
	agent  *Server
	url    string
	client *http.Client
	calls  atomic.Int64 // that reached the engine
}

// newStand plays the engine by a handler; nil answers {}.
func newStand(t testing.TB, limit int, engine http.HandlerFunc, change ...func(*Config)) *stand {
	s := &stand{t: t}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			return
		}
		s.calls.Add(1)
		io.Copy(io.Discard, r.Body) // net/http sees the end of a client only after that
		if engine == nil {
			io.WriteString(w, "{}")
			return
		}
		engine(w, r)
	}))
	t.Cleanup(upstream.Close)
	backend, err := llmserver.DialHTTP(llmserver.Endpoint{URL: upstream.URL, ConnectTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(backend.Close)
	config := Config{
		Engine: backend, Limit: limit, MaxBodyBytes: 1 << 20,
		WriteTimeout: time.Minute, ProbeTimeout: 5 * time.Second, Log: slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&config)
	}
	s.agent = New(config)
	server := httptest.NewUnstartedServer(s.agent)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	server.Start()
	t.Cleanup(server.Close)
	s.url = server.URL
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	s.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return s
}

// answer is a whole answer.
type answer struct {
	*http.Response
	text string
}

// send makes a call; header holds names and values in turn.
func (s *stand) send(method, path, body string, header ...string) (*http.Response, error) {
	return s.sendBody(s.t.Context(), method, path, strings.NewReader(body), header...)
}

func (s *stand) sendBody(ctx context.Context, method, path string, body io.Reader, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, body)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return s.client.Do(req)
}

// try makes a call, reads its answer and checks that it carries a report.
func (s *stand) try(method, path, body string, header ...string) (answer, error) {
	resp, err := s.send(method, path, body, header...)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	report, ok := readReport(resp.Header)
	if now := s.agent.table.Report(); !ok || report.Instance != now.Instance || report.Seq > now.Seq {
		s.t.Errorf("%s %s was answered %s with the report %+v", method, path, resp.Status, report)
	}
	return answer{resp, string(text)}, nil
}

// call makes a call that must be answered.
func (s *stand) call(method, path, body string, header ...string) answer {
	s.t.Helper()
	a, err := s.try(method, path, body, header...)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

// reserve asks for a slot under a token.
func (s *stand) reserve(token llmserver.Token) answer {
	s.t.Helper()
	return s.call(http.MethodPost, "/internal/slots", `{"token":"`+token.String()+`"}`)
}

// reserved is the token of a slot that must be there.
func (s *stand) reserved() llmserver.Token {
	s.t.Helper()
	token := uuid.New()
	if a := s.reserve(token); a.json()["accepted"] != true {
		s.t.Fatalf("the reservation was answered %s", a.text)
	}
	return token
}

// chat sends a chat request, into the slot of the token if there is one.
func (s *stand) chat(token string) answer {
	s.t.Helper()
	if token == "" {
		return s.call(http.MethodPost, "/v1/chat/completions", "{}")
	}
	return s.call(http.MethodPost, "/v1/chat/completions", "{}", headerToken, token)
}

func (a answer) json() (fields map[string]any) {
	json.Unmarshal([]byte(a.text), &fields)
	return fields
}

// wantRefusal checks an answer of OpenAI's form that lets nothing in.
func (s *stand) wantRefusal(a answer, status int, code, reason string) {
	s.t.Helper()
	e, _ := a.json()["error"].(map[string]any)
	if a.StatusCode != status || e["code"] != code || a.Header.Get(headerRefused) != reason {
		s.t.Errorf("refused with %d, %q, %s; want %d, %q, code %s", a.StatusCode, a.Header.Get(headerRefused), a.text, status, reason, code)
	}
	if e["message"] == "" || e["type"] == "" || len(e) != 4 {
		s.t.Errorf("it is no error of OpenAI's: %s", a.text)
	}
	if a.Header.Get("Content-Type") != "application/json" || a.Header.Get("Content-Length") != strconv.Itoa(len(a.text)) {
		s.t.Errorf("header %v", a.Header)
	}
}

// wantCounts checks what is held, and that the engine got so many calls.
func (s *stand) wantCounts(reserved, running int, calls int64) {
	s.t.Helper()
	if r := s.agent.Read(); r.Reserved != reserved || r.Running != running || r.Waiting != 0 {
		s.t.Errorf("reserved %d, running %d, waiting %d; want %d, %d, 0", r.Reserved, r.Running, r.Waiting, reserved, running)
	}
	if n := s.calls.Load(); n != calls {
		s.t.Errorf("the engine got %d calls; want %d", n, calls)
	}
}

// eventually waits for what another goroutine or process brings about.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

// unreachable is an engine to which no connection can be made.
func unreachable(t *testing.T) llmserver.Backend {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	backend, err := llmserver.DialHTTP(llmserver.Endpoint{URL: gone.URL, ConnectTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(backend.Close)
	return backend
}
