package agent

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth/llmserver"
)

// wantReport checks the fields of a control call's response, and that header and body agree.
func (s *testAgent) wantReport(a response, want map[string]any) {
	s.t.Helper()
	got := a.json()
	now := s.agent.table.Report()
	want["instance"], want["max_ongoing_requests"], want["draining"] = now.Instance, float64(now.Limit), now.Draining
	if a.StatusCode != http.StatusOK || len(got) != len(want)+1 {
		s.t.Errorf("%s: %s; want %v and seq", a.Status, a.text, want)
	}
	for name, value := range want {
		if got[name] != value {
			s.t.Errorf("%s is %v; want %v", name, got[name], value)
		}
	}
	report, _ := parseReportHeader(a.Header)
	if got["seq"] != float64(report.Seq) || got["num_ongoing_requests"] != float64(report.Ongoing) {
		s.t.Errorf("the header says %+v, the body %s", report, a.text)
	}
}

func TestAgentReserveReturnsOutcomeAndReport(t *testing.T) {
	s := newTestAgent(t, 2, nil)
	first, second := uuid.New(), uuid.New()
	a := s.postReserve(first)
	s.wantReport(a, map[string]any{"accepted": true, "num_ongoing_requests": 1.0})
	again := s.postReserve(first)
	if again.text != a.text || again.Header.Get(headerRefused) != "" {
		t.Errorf("asked again: %s; want %s", again.text, a.text)
	}
	s.wantReport(s.postReserve(second), map[string]any{"accepted": true, "num_ongoing_requests": 2.0})
	full := s.postReserve(uuid.New())
	s.wantReport(full, map[string]any{"accepted": false, "num_ongoing_requests": 2.0})
	if full.Header.Get(headerRefused) != "full" {
		t.Errorf("refused with %q", full.Header.Get(headerRefused))
	}
	s.agent.Drain()
	draining := s.postReserve(uuid.New())
	s.wantReport(draining, map[string]any{"accepted": false, "num_ongoing_requests": 2.0})
	if draining.json()["draining"] != true || draining.Header.Get(headerRefused) != "draining" {
		t.Errorf("while draining: %q %s", draining.Header.Get(headerRefused), draining.text)
	}
	s.wantCounts(2, 0, 0)
}

func TestAgentReleasesByTokenOnce(t *testing.T) {
	s := newTestAgent(t, 2, nil)
	token, overtaken := s.mustReserve(), uuid.New()
	for _, name := range []llmserver.Token{token, token, overtaken} {
		a := s.call(http.MethodDelete, "/internal/slots/"+name.String(), "")
		s.wantReport(a, map[string]any{"num_ongoing_requests": 0.0})
	}
	for _, name := range []llmserver.Token{token, overtaken} {
		s.wantRefusal(s.postReserve(name), http.StatusConflict, "unknown_slot_token", "unknown_token")
	}
	s.wantRefusal(s.call(http.MethodDelete, "/internal/slots/no-uuid", ""), http.StatusBadRequest, "invalid_token", "")
	s.wantCounts(0, 0, 0)
}

func TestAgentCountsSeparateReservedFromRunning(t *testing.T) {
	hold := make(chan struct{})
	s := newTestAgent(t, 3, func(http.ResponseWriter, *http.Request) { <-hold })
	s.mustReserve()
	token := s.mustReserve()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := s.tryCall(http.MethodPost, "/v1/chat/completions", "{}", headerToken, token.String()); err != nil {
			t.Error(err)
		}
	}()
	eventually(t, "a running request", func() bool { return s.calls.Load() == 1 })
	s.wantReport(s.call(http.MethodGet, "/internal/slots", ""), map[string]any{
		"num_ongoing_requests": 2.0, "reserved": 1.0, "running": 1.0,
	})
	close(hold)
	<-done
}

func TestAgentRejectsInvalidReservations(t *testing.T) {
	s := newTestAgent(t, 1, nil)
	token := uuid.NewString()
	for _, body := range []string{
		``, `{`, `[]`, `null`, `"x"`, `{}`, `{"token":null}`, `{"token":7}`, `{"token":"x"}`, `{"lease_s":10}`,
		`{"token":"00000000-0000-0000-0000-000000000000"}`,
		`{"token":"` + token + `","lease_s":0}`,
		`{"token":"` + token + `","lease_s":-1e300}`,
		`{"token":"` + token + `","lease_s":1e-300}`,
		`{"token":"` + token + `","lease_s":1e999}`,
		`{"token":"` + token + `","lease_s":"10"}`,
		`{"token":"` + token + `","wait_ms":-1}`,
		`{"token":"` + token + `","wait_ms":1e300}`,
		`{"token":"` + token + `","filler":"` + strings.Repeat("x", 4<<10) + `"}`,
	} {
		s.wantRefusal(s.call(http.MethodPost, "/internal/slots", body), http.StatusBadRequest, "invalid_reservation", "")
	}
	s.wantCounts(0, 0, 0)
	s.wantRefusal(s.call(http.MethodPut, "/internal/slots", "{}"), http.StatusNotFound, "unknown_url", "")
	s.wantRefusal(s.call(http.MethodPost, "/internal/other", "{}"), http.StatusNotFound, "unknown_url", "")
}

func TestAgentLeaseIsClamped(t *testing.T) {
	for asked, want := range map[string]time.Duration{
		"": DefaultLease, `,"lease_s":null`: DefaultLease, `,"lease_s":0.25`: time.Second / 4,
		`,"lease_s":61`: MaxLease, `,"lease_s":1e300`: MaxLease,
	} {
		var call reserveRequest
		if err := json.Unmarshal([]byte(`{"token":"`+uuid.NewString()+`"`+asked+`}`), &call); err != nil || call.lease() != want {
			t.Errorf("%s: %v, %v; want %v", asked, call.lease(), err, want)
		}
	}
}

// wait reserves a slot with a wait, in the background.
func (s *testAgent) wait(token llmserver.Token, ms string) (answers chan response) {
	answers = make(chan response, 1)
	go func() {
		defer close(answers)
		a, err := s.tryCall(http.MethodPost, "/internal/slots", `{"token":"`+token.String()+`","wait_ms":`+ms+`}`)
		if err != nil {
			s.t.Error(err)
			return
		}
		answers <- a
	}()
	return answers
}

func TestAgentWaitEndsWithSlotCancelOrTimeout(t *testing.T) {
	s := newTestAgent(t, 1, nil)
	waiting := func() bool { return s.agent.Read().Waiting == 1 }
	release := func(token llmserver.Token) { s.call(http.MethodDelete, "/internal/slots/"+token.String(), "") }
	holder, heir, cancelled, late := s.mustReserve(), uuid.New(), uuid.New(), uuid.New()

	answers := s.wait(heir, "60000")
	eventually(t, "a wait", waiting)
	release(holder)
	s.wantReport(<-answers, map[string]any{"accepted": true, "num_ongoing_requests": 1.0})

	answers = s.wait(cancelled, "60000")
	eventually(t, "a wait", waiting)
	release(cancelled)
	s.wantRefusal(<-answers, http.StatusConflict, "unknown_slot_token", "unknown_token")

	s.wantReport(<-s.wait(late, "1"), map[string]any{"accepted": false, "num_ongoing_requests": 1.0})
	s.wantCounts(1, 0, 0)
}

func TestAgentDequeuesDisconnectedIngress(t *testing.T) {
	s := newTestAgent(t, 1, nil)
	s.mustReserve()
	token := uuid.New()
	body := strings.NewReader(`{"token":"` + token.String() + `","wait_ms":600000}`)
	ctx, stop := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := s.sendBody(ctx, http.MethodPost, "/internal/slots", body)
		failed <- err
	}()
	eventually(t, "a wait", func() bool { return s.agent.Read().Waiting == 1 })
	stop()
	if err := <-failed; err == nil {
		t.Error("there was a response")
	}
	eventually(t, "the end of the wait", func() bool { return s.agent.Read().Waiting == 0 })
	s.wantRefusal(s.postReserve(token), http.StatusConflict, "unknown_slot_token", "unknown_token")
}

func TestAgentRequiresSecretForControlCallsOnly(t *testing.T) {
	s := newTestAgent(t, 2, nil, func(c *Config) { c.Secret = "open sesame" })
	token := uuid.New()
	if _, err := s.agent.table.Reserve(t.Context(), token, DefaultLease, 0); err != nil {
		t.Fatal(err)
	}
	before := s.agent.Read()
	calls := []struct{ method, path, body string }{
		{http.MethodPost, "/internal/slots", `{"token":"` + uuid.NewString() + `"}`},
		{http.MethodDelete, "/internal/slots/" + token.String(), ""},
		{http.MethodGet, "/internal/slots", ""},
	}
	for _, c := range calls {
		for _, secret := range []string{"", "open", "Open sesame", "open sesame2"} {
			header := []string{headerSecret, secret}
			if secret == "" {
				header = nil
			}
			s.wantRefusal(s.call(c.method, c.path, c.body, header...), http.StatusForbidden, "wrong_slot_secret", "")
		}
	}
	if after := s.agent.Read(); after != before {
		t.Errorf("calls without the secret have changed %+v to %+v", before, after)
	}
	for _, c := range calls {
		if a := s.call(c.method, c.path, c.body, headerSecret, "open sesame"); a.StatusCode != http.StatusOK {
			t.Errorf("%s with the secret: %s", c.method, a.Status)
		}
	}
	if a := s.chat(""); a.StatusCode != http.StatusOK {
		t.Errorf("a request: %s", a.Status)
	}
}

func TestAgentHealthIsTheEnginesUntilDraining(t *testing.T) {
	s := newTestAgent(t, 1, nil)
	sick := newTestAgent(t, 1, nil, func(c *Config) { c.Engine = unreachableEngine(t) })
	for _, path := range []string{"/health", "/readyz"} {
		if a := s.call(http.MethodGet, path, ""); a.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, a.Status)
		}
		if a := sick.call(http.MethodGet, path, ""); a.StatusCode != http.StatusServiceUnavailable || !strings.Contains(a.text, "no connection") {
			t.Errorf("%s without an engine: %s %s", path, a.Status, a.text)
		}
	}
	s.mustReserve()
	s.agent.Drain()
	for _, path := range []string{"/health", "/readyz"} {
		if a := s.call(http.MethodGet, path, ""); a.StatusCode != http.StatusServiceUnavailable || a.text != "draining\n" {
			t.Errorf("%s while draining: %s %s", path, a.Status, a.text)
		}
	}
	if a := s.call(http.MethodGet, "/livez", ""); a.StatusCode != http.StatusOK {
		t.Errorf("/livez while draining: %s", a.Status)
	}
}

func TestAgentMetricsAreReadFromTheTable(t *testing.T) {
	s := newTestAgent(t, 2, nil)
	s.chat(s.mustReserve().String())
	s.chat("")
	s.chat(uuid.NewString())
	released := s.mustReserve()
	s.agent.table.Release(released)
	s.mustReserve()
	s.mustReserve()
	s.chat("")
	s.agent.Drain()
	s.postReserve(uuid.New())
	text := s.call(http.MethodGet, "/metrics", "").text
	for _, line := range []string{
		`berth_agent_slots{state="reserved"} 2`, `berth_agent_slots{state="running"} 0`,
		`berth_agent_slots_capacity 2`, `berth_agent_slots_max 2`, `berth_agent_waiting 0`, `berth_agent_draining 1`,
		`berth_agent_reservations_total{outcome="accepted"} 4`, `berth_agent_reservations_total{outcome="full"} 1`,
		`berth_agent_reservations_total{outcome="draining"} 1`, `berth_agent_reservations_total{outcome="unknown_token"} 1`,
		`berth_agent_releases_total{cause="consumed"} 1`, `berth_agent_releases_total{cause="released"} 1`,
		`berth_agent_releases_total{cause="expired"} 0`, `berth_agent_releases_total{cause="finished"} 2`,
		`berth_agent_unreserved_total 1`,
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("there is no line %s", line)
		}
	}
	if t.Failed() {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "berth_") {
				io.WriteString(t.Output(), line)
			}
		}
	}
}
