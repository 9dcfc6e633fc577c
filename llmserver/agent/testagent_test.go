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

// testAgent is an agent on a loopback port, in front of an engine with a handler of the test.
type testAgent struct {
	t      testing.TB
	agent  *Server
	url    string
	client *http.Client
	calls  atomic.Int64 // calls that reached the engine
}

// newTestAgent starts an engine with the given handler and an agent before it; a nil handler
// responds {}.
func newTestAgent(t testing.TB, limit int, engine http.HandlerFunc, change ...func(*Config)) *testAgent {
	s := &testAgent{t: t}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			return
		}
		s.calls.Add(1)
		io.Copy(io.Discard, r.Body) // net/http notices a disconnect only after that
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

// response is a response with its complete body.
type response struct {
	*http.Response
	text string
}

// send makes a call; header alternates names and values.
func (s *testAgent) send(method, path, body string, header ...string) (*http.Response, error) {
	return s.sendBody(s.t.Context(), method, path, strings.NewReader(body), header...)
}

func (s *testAgent) sendBody(ctx context.Context, method, path string, body io.Reader, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, body)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return s.client.Do(req)
}

// tryCall makes a call, reads its response and checks that it carries a report.
func (s *testAgent) tryCall(method, path, body string, header ...string) (response, error) {
	resp, err := s.send(method, path, body, header...)
	if err != nil {
		return response{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return response{}, err
	}
	report, ok := parseReportHeader(resp.Header)
	if now := s.agent.table.Report(); !ok || report.Instance != now.Instance || report.Seq > now.Seq {
		s.t.Errorf("%s %s : response %s with the report %+v", method, path, resp.Status, report)
	}
	return response{resp, string(text)}, nil
}

// call makes a call that must get a response.
func (s *testAgent) call(method, path, body string, header ...string) response {
	s.t.Helper()
	a, err := s.tryCall(method, path, body, header...)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

// postReserve reserves a slot under a token.
func (s *testAgent) postReserve(token llmserver.Token) response {
	s.t.Helper()
	return s.call(http.MethodPost, "/internal/slots", `{"token":"`+token.String()+`"}`)
}

// mustReserve reserves a slot that must be free and returns its token.
func (s *testAgent) mustReserve() llmserver.Token {
	s.t.Helper()
	token := uuid.New()
	if a := s.postReserve(token); a.json()["accepted"] != true {
		s.t.Fatalf("the reservation returned %s", a.text)
	}
	return token
}

// chat sends a chat request, in the slot of the token if that is not empty.
func (s *testAgent) chat(token string) response {
	s.t.Helper()
	if token == "" {
		return s.call(http.MethodPost, "/v1/chat/completions", "{}")
	}
	return s.call(http.MethodPost, "/v1/chat/completions", "{}", headerToken, token)
}

func (a response) json() (fields map[string]any) {
	json.Unmarshal([]byte(a.text), &fields)
	return fields
}

// wantRefusal checks a refusal in OpenAI's error format.
func (s *testAgent) wantRefusal(a response, status int, code, reason string) {
	s.t.Helper()
	e, _ := a.json()["error"].(map[string]any)
	if a.StatusCode != status || e["code"] != code || a.Header.Get(headerRefused) != reason {
		s.t.Errorf("refused with %d, %q, %s; want %d, %q, code %s", a.StatusCode, a.Header.Get(headerRefused), a.text, status, reason, code)
	}
	if e["message"] == "" || e["type"] == "" || len(e) != 4 {
		s.t.Errorf("not an error in OpenAI's format: %s", a.text)
	}
	if a.Header.Get("Content-Type") != "application/json" || a.Header.Get("Content-Length") != strconv.Itoa(len(a.text)) {
		s.t.Errorf("header %v", a.Header)
	}
}

// wantCounts checks the slots held and the number of calls to the engine.
func (s *testAgent) wantCounts(reserved, running int, calls int64) {
	s.t.Helper()
	if r := s.agent.Read(); r.Reserved != reserved || r.Running != running || r.Waiting != 0 {
		s.t.Errorf("reserved %d, running %d, waiting %d; want %d, %d, 0", r.Reserved, r.Running, r.Waiting, reserved, running)
	}
	if n := s.calls.Load(); n != calls {
		s.t.Errorf("the engine got %d calls; want %d", n, calls)
	}
}

// eventually waits until f returns true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting: %s", what)
		}
	}
}

// unreachableEngine returns an engine that refuses connections.
func unreachableEngine(t *testing.T) llmserver.Backend {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	backend, err := llmserver.DialHTTP(llmserver.Endpoint{URL: gone.URL, ConnectTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(backend.Close)
	return backend
}
