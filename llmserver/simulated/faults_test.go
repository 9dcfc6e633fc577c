package simulated

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

func serve(t *testing.T, server *http.Server) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		server.Serve(listener)
	}()
	t.Cleanup(func() { server.Close(); <-ended })
	return "http://" + listener.Addr().String()
}

func TestSimulatedFaultHitsTheGivenNumberOfRequests(t *testing.T) {
	s := mustListen(t, atOnce)
	if resp, body, err := post(t, httpClient(t), s.URL()+"/simulated/faults", `{"status":503,"times":2}`); err != nil || resp.StatusCode != 200 {
		t.Fatal(err, body)
	}
	var got []int
	for range 3 {
		resp, _, err := post(t, httpClient(t), s.URL()+"/v1/chat/completions", chatBody+`}`)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, resp.StatusCode)
	}
	if got[0] != 503 || got[1] != 503 || got[2] != 200 {
		t.Errorf("statuses %v", got)
	}
	var st Stats
	resp, err := httpClient(t).Get(s.URL() + "/simulated/stats")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&st); err != nil || st.Refused != 2 || st.Completed != 1 || st.Requests != 3 {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestSimulatedInvalidFaultsAreRejected(t *testing.T) {
	s := mustListen(t, atOnce)
	for _, body := range []string{`{"status":99}`, `{"cut":"maybe"}`, `{"cut_after":-1}`, `{"slow":1e300}`, `{"hnag":true}`, `x`} {
		if resp, _, err := post(t, httpClient(t), s.URL()+"/simulated/faults", body); err != nil || resp.StatusCode != 400 {
			t.Errorf("%s: %v, %v", body, resp.StatusCode, err)
		}
	}
}

func TestSimulatedGarbageIsNotJSON(t *testing.T) {
	s := mustListen(t, atOnce)
	s.Engine().SetFaults(Faults{Status: 599, Garbage: true})
	resp, body, err := post(t, httpClient(t), s.URL()+"/v1/chat/completions", chatBody+`}`)
	if err != nil || resp.StatusCode != 599 || json.Valid([]byte(body)) || body == "" {
		t.Errorf("%v %v %q", resp, err, body)
	}
}

func TestSimulatedUnhealthyUntilReset(t *testing.T) {
	s := mustListen(t, atOnce)
	status := func() int {
		resp, err := httpClient(t).Get(s.URL() + "/health")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	s.Engine().SetFaults(Faults{Unhealthy: true})
	post(t, httpClient(t), s.URL()+"/v1/chat/completions", chatBody+`}`)
	if got := status(); got != 503 {
		t.Errorf("unhealthy: %d", got)
	}
	post(t, httpClient(t), s.URL()+"/simulated/reset", "")
	if got := status(); got != 200 {
		t.Errorf("after a reset: %d", got)
	}
	st := s.Engine().Stats()
	if st.Connections = 0; st != (Stats{}) {
		t.Errorf("after a reset: %+v", st)
	}
	s.Engine().Close()
	if got := status(); got != 503 {
		t.Errorf("closed: %d", got)
	}
}

func TestSimulatedHangEndsWithFaultOrClient(t *testing.T) {
	s := mustListen(t, atOnce)
	e := s.Engine()
	e.SetFaults(Faults{Hang: true})
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "POST", s.URL()+"/v1/chat/completions", strings.NewReader(chatBody+`}`))
	left, stayed := make(chan error), make(chan error)
	go func() {
		_, err := httpClient(t).Do(req)
		left <- err
	}()
	go func() {
		_, _, err := post(t, httpClient(t), s.URL()+"/v1/chat/completions", chatBody+`}`)
		stayed <- err
	}()
	until(t, "both hang", func() bool { return e.Stats().InFlight == 2 })
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	until(t, "one is left", func() bool { return e.Stats().InFlight == 1 })
	e.SetFaults(Faults{})
	if err := <-stayed; err != nil {
		t.Error(err)
	}
	if st := e.Stats(); st.Aborted != 1 || st.Completed != 1 {
		t.Errorf("%+v", st)
	}
}

func TestSimulatedResponseIsCutAsTheFaultSays(t *testing.T) {
	const stream, whole = chatBody + `,"stream":true}`, chatBody + `}`
	for _, c := range []struct {
		body   string
		faults Faults
		events int // complete events that arrive
		err    error
		any    bool // any error
	}{
		{stream, Faults{Cut: CutAbort, CutAfter: 3}, 3, io.ErrUnexpectedEOF, false},
		{stream, Faults{Cut: CutAbort, CutAfter: 6}, 6, io.ErrUnexpectedEOF, false}, // all but [DONE]
		{stream, Faults{Cut: CutReset, CutAfter: 3}, 3, syscall.ECONNRESET, false},
		{stream, Faults{Cut: CutClean, CutAfter: 3}, 3, nil, false},
		{stream, Faults{Cut: CutAbort}, 0, nil, true},
		{stream, Faults{Cut: CutReset}, 0, nil, true},
		{whole, Faults{Cut: CutAbort, CutAfter: 1}, 0, io.ErrUnexpectedEOF, false},
		{whole, Faults{Cut: CutClean, CutAfter: 1}, 0, nil, false},
		{whole, Faults{Cut: CutAbort}, 0, nil, true},
	} {
		s := mustListen(t, atOnce)
		s.Engine().SetFaults(c.faults)
		events, err := read(t, s.URL(), c.body)
		if c.any && err == nil || !c.any && !errors.Is(err, c.err) {
			t.Errorf("%+v: ended with %v, want %v", c.faults, err, c.err)
		}
		if events != c.events && c.faults.Cut != CutReset || events > c.events { // a reset may discard sent bytes
			t.Errorf("%+v: %d events, want %d", c.faults, events, c.events)
		}
		until(t, "it is counted", func() bool { return s.Engine().Stats().InFlight == 0 })
		if st := s.Engine().Stats(); st.Aborted != 1 || st.Completed != 0 || st.WastedTokens != st.GeneratedTokens {
			t.Errorf("%+v: %+v", c.faults, st)
		}
	}
}

// read posts a chat request and counts the complete events of the response.
func read(t *testing.T, url, body string) (events int, err error) {
	_, response, err := post(t, httpClient(t), url+"/v1/chat/completions", body)
	if strings.Contains(response, "[DONE]") || json.Valid([]byte(response)) {
		t.Errorf("the response is complete: %s", response)
	}
	return strings.Count(response, "\n\n"), err
}

func TestSimulatedCutBeyondTheEndCutsNothing(t *testing.T) {
	s := mustListen(t, atOnce)
	s.Engine().SetFaults(Faults{Cut: CutAbort, CutAfter: 7}) // role, five tokens, [DONE]
	_, response, err := post(t, httpClient(t), s.URL()+"/v1/chat/completions", chatBody+`,"stream":true}`)
	if err != nil || !strings.HasSuffix(response, doneEvent) || s.Engine().Stats().Completed != 1 {
		t.Errorf("%v %q %+v", err, response, s.Engine().Stats())
	}
}

func TestSimulatedCloseCutsStreamsAndShutdownFinishesThem(t *testing.T) {
	config := testConfig
	config.DecodeStep = 2 * time.Millisecond
	for _, graceful := range []bool{false, true} {
		s := mustListen(t, config)
		resp, err := httpClient(t).Post(s.URL()+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"x","max_tokens":50,"stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		if graceful {
			go s.Shutdown(t.Context())
		} else {
			go s.Close()
		}
		response, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if whole := strings.HasSuffix(string(response), doneEvent); whole != graceful || (err == nil) != graceful {
			t.Errorf("graceful %t: whole %t, %v", graceful, whole, err)
		}
	}
}

func TestSimulatedCloseWaitsForCutRequests(t *testing.T) {
	s := mustListen(t, testConfig)
	resp, err := httpClient(t).Post(s.URL()+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"x","max_tokens":100000,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	closed := make(chan struct{})
	s.Engine().counts.mu.Lock() // no request can finish
	go func() {
		defer close(closed)
		s.Close()
	}()
	select {
	case <-closed:
		t.Error("Close did not wait")
	case <-time.After(50 * time.Millisecond):
	}
	s.Engine().counts.mu.Unlock()
	<-closed
	if st := s.Engine().Stats(); st.InFlight != 0 || st.Aborted != 1 {
		t.Errorf("%+v", st)
	}
}

func TestSimulatedCloseNeverMakesAStreamLookComplete(t *testing.T) {
	e := New(testConfig)
	url := serve(t, &http.Server{Handler: e.Handler()})
	resp, err := httpClient(t).Post(url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"x","max_tokens":1000,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	e.Close()
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the stream ended properly")
	}
	late, _, err := post(t, httpClient(t), url+"/v1/completions", `{"prompt":"x"}`)
	if err != nil || late.StatusCode != 503 {
		t.Errorf("a closed engine responds %v, %v", late, err)
	}
}
