package agent

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth/llmserver"
)

// dial returns the client of the agent at a URL.
func dial(t *testing.T, url, secret string) llmserver.Backend {
	t.Helper()
	backend, err := Dial(llmserver.Endpoint{URL: url, CountsSlots: true, SlotSecret: secret, APIKey: "engine's", ConnectTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(backend.Close)
	return backend
}

func chatRequest(ctx context.Context) *http.Request {
	return (&http.Request{
		Method:        http.MethodPost,
		URL:           &url.URL{Path: "/v1/chat/completions"},
		Header:        make(http.Header),
		Body:          io.NopCloser(strings.NewReader("{}")),
		ContentLength: 2,
	}).WithContext(ctx)
}

// scriptedAgent starts a server with the given handler.
func scriptedAgent(t *testing.T, handler http.HandlerFunc) (url string) {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

// abortConnection breaks the connection instead of responding.
func abortConnection() { panic(http.ErrAbortHandler) }

func TestClientReservesCancelsAndDispatches(t *testing.T) {
	for _, secret := range []string{"", "sesame"} {
		s := newTestAgent(t, 2, nil, func(c *Config) { c.Secret = secret })
		c := dial(t, s.url, secret)
		token, other := uuid.New(), uuid.New()
		want := func(what string, report llmserver.Report, err error, ongoing int) {
			t.Helper()
			now := s.agent.table.Report()
			if err != nil || report.Ongoing != ongoing || report.Instance != now.Instance || report.Seq > now.Seq || report.Seq == 0 {
				t.Errorf("%s: %+v, %v; want %d ongoing", what, report, err, ongoing)
			}
		}
		report, err := c.Reserve(t.Context(), token, 0)
		want("Reserve", report, err, 1)
		if report.Limit != 2 {
			t.Errorf("the capacity is told as %d", report.Limit)
		}
		report, err = c.Reserve(t.Context(), other, 0)
		want("Reserve", report, err, 2)
		report, err = c.Cancel(t.Context(), other)
		want("Cancel", report, err, 1)
		report, err = c.Probe(t.Context())
		want("Probe", report, err, 1)
		resp, report, err := c.Do(chatRequest(t.Context()), token)
		want("Do", report, err, 1)
		if err == nil {
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if string(text) != "{}" || err != nil {
				t.Errorf("%q, %v", text, err)
			}
		}
		s.wantCounts(0, 0, 1)
	}
}

func TestClientMapsRefusalsToRefusedErrors(t *testing.T) {
	s := newTestAgent(t, 1, nil)
	c := dial(t, s.url, "")
	down := newTestAgent(t, 1, nil, func(c *Config) { c.Engine = unreachableEngine(t) })
	toDown := dial(t, down.url, "")
	want := func(what string, report llmserver.Report, err, target error) {
		t.Helper()
		if !errors.Is(err, target) || !llmserver.Refused(err) || report.Instance == "" {
			t.Errorf("%s: %v, with %+v; want %v and a report", what, err, report, target)
		}
	}
	do := func(c llmserver.Backend, t llmserver.Token) (llmserver.Report, error) {
		_, report, err := c.Do(chatRequest(s.t.Context()), t)
		return report, err
	}
	report, err := do(c, uuid.New())
	want("an unknown token", report, err, llmserver.ErrToken)
	report, err = do(toDown, down.mustReserve())
	want("an engine that is down", report, err, llmserver.ErrNoConnection)

	held := s.mustReserve()
	report, err = c.Reserve(t.Context(), uuid.New(), 0)
	want("full", report, err, llmserver.ErrFull)
	report, err = do(c, llmserver.Token{})
	want("full, without a token", report, err, llmserver.ErrFull)
	s.agent.table.Release(held)
	if _, err = c.Reserve(t.Context(), held, 0); !errors.Is(err, llmserver.ErrToken) || !llmserver.Refused(err) {
		t.Errorf("a spent token: %v", err)
	}
	s.agent.Drain()
	report, err = c.Reserve(t.Context(), uuid.New(), 0)
	want("draining", report, err, llmserver.ErrDraining)
	report, err = do(c, llmserver.Token{})
	want("draining, without a token", report, err, llmserver.ErrDraining)
	s.wantCounts(0, 0, 0)
}

func TestClientWaitsInTheAgentsQueue(t *testing.T) {
	s := newTestAgent(t, 1, nil)
	c := dial(t, s.url, "")
	held := s.mustReserve()
	if _, err := c.Reserve(t.Context(), uuid.New(), time.Millisecond); !errors.Is(err, llmserver.ErrFull) {
		t.Errorf("a wait in vain: %v", err)
	}
	token, done := uuid.New(), make(chan error, 1)
	go func() {
		_, err := c.Reserve(t.Context(), token, time.Minute)
		done <- err
	}()
	eventually(t, "a wait", func() bool { return s.agent.Read().Waiting == 1 })
	s.agent.table.Release(held)
	if err := <-done; err != nil {
		t.Errorf("Reserve = %v", err)
	}
	mustConsume(t, s.agent.table, token).Finish()
}

// The agent has reserved the slot, but the reply is lost.
func TestClientCancelsSlotOfLostReply(t *testing.T) {
	losses := map[string]func(http.ResponseWriter, *httptest.ResponseRecorder){
		"no byte of it":     func(http.ResponseWriter, *httptest.ResponseRecorder) { abortConnection() },
		"a part of it came": func(w http.ResponseWriter, whole *httptest.ResponseRecorder) { dropReply(w, whole.Body.Bytes()) },
		"it is no JSON":     func(w http.ResponseWriter, _ *httptest.ResponseRecorder) { io.WriteString(w, "{") },
		"a proxy's error":   func(w http.ResponseWriter, _ *httptest.ResponseRecorder) { w.WriteHeader(http.StatusBadGateway) },
	}
	for name, loss := range losses {
		t.Run(name, func(t *testing.T) {
			s := newTestAgent(t, 1, nil)
			url := scriptedAgent(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodPost {
					s.agent.ServeHTTP(w, r)
					return
				}
				whole := httptest.NewRecorder()
				s.agent.ServeHTTP(whole, r)
				loss(w, whole)
			})
			replica := llmserver.NewReplica(llmserver.Endpoint{ID: "r", URL: url, Limit: 1, CountsSlots: true}, dial(t, url, ""))
			slot, err := replica.TryReserve("holder", 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := slot.Confirm(t.Context(), 0); err == nil || llmserver.Refused(err) {
				t.Errorf("Confirm = %v", err)
			}
			replica.Wait()
			s.wantCounts(0, 0, 0)
			if r := s.agent.Read(); r.Totals.Reserved != 1 || r.Released != 1 {
				t.Errorf("%+v", r.Totals)
			}
			if u := replica.Usage(); u.Ongoing() != 0 {
				t.Errorf("%+v", u)
			}
			if _, err := s.agent.table.Consume(slot.Token()); err != llmserver.ErrToken {
				t.Errorf("Consume = %v", err)
			}
		})
	}
}

// dropReply sends half of a reply and aborts.
func dropReply(w http.ResponseWriter, body []byte) {
	w.Write(body[:len(body)/2])
	http.NewResponseController(w).Flush()
	abortConnection()
}

// A pooled connection that the agent has just closed is no sign of a failing agent.
func TestClientRetriesOnlyStaleConnections(t *testing.T) {
	s := newTestAgent(t, 1, nil)
	var calls atomic.Int64
	var broken atomic.Bool
	url := scriptedAgent(t, func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 2 || broken.Load() {
			abortConnection()
		}
		s.agent.ServeHTTP(w, r)
	})
	c := dial(t, url, "")
	token := uuid.New()
	for range 2 {
		if _, err := c.Reserve(t.Context(), token, 0); err != nil {
			t.Fatal(err)
		}
	}
	if n := calls.Load(); n != 3 {
		t.Errorf("%d calls; want the first, the stale and its repetition", n)
	}
	s.wantCounts(1, 0, 0)
	broken.Store(true)
	c.Close()
	if _, err := c.Cancel(t.Context(), token); !errors.Is(err, llmserver.ErrBroken) || errors.Is(err, llmserver.ErrStale) {
		t.Errorf("Cancel = %v", err)
	}
	if n := calls.Load(); n != 4 {
		t.Errorf("%d calls; one over a fresh connection must not be repeated", n)
	}
}

// A silent agent must not delay a request for ever, but it must be given the time for which the
// reservation was to queue.
func TestClientControlCallTimesOutTwoSecondsAfterItsWait(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 1)
	url := scriptedAgent(t, func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		asked <- struct{}{}
		<-r.Context().Done()
	})
	began, wait := time.Now(), 100*time.Millisecond
	_, err := dial(t, url, "").Reserve(t.Context(), uuid.New(), wait)
	if err != errAgentTimeout || llmserver.Refused(err) { // clients may read it
		t.Errorf("Reserve = %v", err)
	}
	const timeout, busyMachine = 2 * time.Second, 5 * time.Second
	if took := time.Since(began); took < timeout+wait || took > timeout+wait+busyMachine {
		t.Errorf("given up after %v, want %v", took, timeout+wait)
	}
	<-asked
}

func TestClientErrorsDescribeTheAgent(t *testing.T) {
	locked := newTestAgent(t, 1, nil, func(c *Config) { c.Secret = "sesame" })
	tests := map[string]struct {
		url  string
		want error
	}{
		"the wrong secret":       {locked.url, errSecret},
		"an engine with 404":     {scriptedAgent(t, http.NotFound), errNoAgent},
		"an engine with 200":     {scriptedAgent(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "{}") }), errNoAgent},
		"another kind of server": {scriptedAgent(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }), errNoAgent},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := dial(t, test.url, "wrong")
			if _, err := c.Reserve(t.Context(), uuid.New(), 0); err != test.want {
				t.Errorf("Reserve = %v", err)
			}
			if _, err := c.Probe(t.Context()); err != test.want {
				t.Errorf("Probe = %v", err)
			}
		})
	}
	if _, err := Dial(llmserver.Endpoint{URL: "agent:80"}); err == nil {
		t.Error("a URL that is none was dialled")
	}
}

func TestClientProbeSeesEngineHealthAndDrain(t *testing.T) {
	s := newTestAgent(t, 1, nil)
	down := newTestAgent(t, 1, nil, func(c *Config) { c.Engine = unreachableEngine(t) })
	if _, err := dial(t, down.url, "").Probe(t.Context()); err == nil {
		t.Error("an agent without its engine is well")
	}
	s.agent.Drain()
	if report, _ := dial(t, s.url, "").Probe(t.Context()); !report.Draining {
		t.Errorf("a draining agent reports %+v", report)
	}
}

// Every response contains the caller's own share, which is 0 for an unnamed caller.
// The path of the endpoint is the engine's; the agent knows that by its own flag.
func TestClientProbesTheAgentsOwnHealthCheck(t *testing.T) {
	var paths []string
	url := scriptedAgent(t, func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		io.WriteString(w, `{"instance":"i"}`)
	})
	c := dial(t, url, "")
	c.Describe(llmserver.Endpoint{URL: url, ProbePath: "/ping"})
	if _, err := c.Probe(t.Context()); err != nil || !slices.Equal(paths, []string{"/internal/slots", "/health"}) {
		t.Errorf("Probe = %v after %q", err, paths)
	}
}

func TestAgentReportsTheCallersOwnShare(t *testing.T) {
	s := newTestAgent(t, 8, nil)
	first, second := dial(t, s.url, ""), dial(t, s.url, "")
	want := func(what string, report llmserver.Report, own, ongoing int) {
		t.Helper()
		if report.Own != own || report.Ongoing != ongoing {
			t.Errorf("%s says %+v; want %d of %d", what, report, own, ongoing)
		}
	}
	token, other := uuid.New(), uuid.New()
	report, err := first.Reserve(t.Context(), token, 0)
	if want("a reservation", report, 1, 1); err != nil {
		t.Fatal(err)
	}
	report, _ = second.Reserve(t.Context(), other, 0)
	want("that of another", report, 1, 2)
	report, _ = first.Probe(t.Context())
	want("a probe", report, 1, 2)
	report, _ = first.Cancel(t.Context(), uuid.New())
	want("a cancel", report, 1, 2)
	_, report, err = first.Do(chatRequest(t.Context()), uuid.New())
	if want("a refusal", report, 1, 2); !errors.Is(err, llmserver.ErrToken) {
		t.Fatal(err)
	}
	resp, report, err := first.Do(chatRequest(t.Context()), token)
	if want("an answer", report, 1, 2); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	report, _ = second.Cancel(t.Context(), other)
	if report.Own != 0 {
		t.Errorf("after its cancel another is told of %d", report.Own)
	}
	held, _ := first.Reserve(t.Context(), uuid.New(), 0)
	want("a reservation", held, 1, 1)
	resp, report, err = first.Do(chatRequest(t.Context()), llmserver.Token{})
	if want("a request without a reservation", report, 1, 2); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if a := s.call(http.MethodGet, "/internal/slots", ""); a.json()["num_own_requests"] != nil || a.Header.Get(headerOwn) != "0" {
		t.Errorf("a caller without a name is told %s", a.text)
	}
}
