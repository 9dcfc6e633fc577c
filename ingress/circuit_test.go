package ingress

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"berth/llmserver"
)

// state returns the state of a replica according to the metrics.
func (f *front) state(id string) (states string) {
	f.t.Helper()
	for _, state := range llmserver.States {
		if f.metric(fmt.Sprintf(`berth_replica_state{model="m",replica=%q,state=%q}`, id, state)) == 1 {
			states += state
		}
	}
	return states
}

// chatAbout sends the prompt with this number.
func (f *front) chatAbout(n int) reply {
	f.t.Helper()
	return f.post("/v1/completions", fmt.Sprintf(`{"model":"m","prompt":"%d"}`, n))
}

func TestCircuitEjectsReplicaForOwnFailuresOnly(t *testing.T) {
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.WriteHeader(status)
			io.WriteString(w, body)
		}
	}
	for name, row := range map[string]struct {
		handler http.HandlerFunc
		state   string
		cause   string
	}{
		"502":                  {answer(502, "bad gateway"), "ejected", "failed"},
		"503":                  {answer(503, `{"error":{"message":"EngineCore encountered an issue."}}`), "ejected", "failed"},
		"504":                  {answer(504, ""), "ejected", "failed"},
		"a reset":              {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "ejected", "failed"},
		"another protocol":     {speak("SSH-2.0-OpenSSH\r\n\r\n"), "ejected", "failed"},
		"a head, then nothing": {speak("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"), "ejected", "failed"},
		"a full queue":         {answer(503, queueFull), "serving", "refused"},
		"a 4xx":                {answer(400, "{}"), "serving", "finished"},
		"too many requests":    {answer(429, "{}"), "serving", "finished"},
		"500":                  {answer(500, `{"error":"out of memory"}`), "ejected", "failed"},
		"no model":             {answer(404, "{\"error\":\"model 'm' not found\"}"), "ejected", "failed"},
		"no path":              {answer(404, `{"detail":"Not Found"}`), "serving", "finished"},
		"not implemented":      {answer(501, ""), "serving", "finished"},
		"half an answer":       {speak("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n"), "ejected", "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			m := modelOn("m", upstream(t, row.handler), upstream(t, ok))
			m.MaxAttempts = 1
			f := serve(t, m)
			f.turn("m")
			for n := range 11 { // in turn: five on the first after a response of the other
				f.chatAbout(n)
			}
			f.idle()
			if got := f.state("a") + " " + f.state("b"); got != row.state+" serving" {
				t.Errorf("the states are %s", got)
			}
			want := 0.
			if row.state == "ejected" {
				want = 1
				for range 4 {
					if r := f.chatAbout(0); r.body != "ok" {
						t.Errorf("got %d %s", r.StatusCode, r.body)
					}
				}
			}
			if n := f.metric(`berth_replica_ejections_total{model="m",replica="a"}`); n != want {
				t.Errorf("counted %v ejections", n)
			}
			if n := f.metric(`berth_releases_total{cause="` + row.cause + `",model="m"}`); n < 4 {
				t.Errorf("counted %v slots as %s", n, row.cause)
			}
		})
	}
}

func TestCircuitIgnoresClientDisconnects(t *testing.T) {
	g := gated(t)
	f := serve(t, modelOn("m", g.url, g.url+"/other"))
	for n := range 10 {
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.do(ctx, f.h1, "POST", "/v1/completions", strings.NewReader(chat("m")))
		}()
		receive(t, g.arrived)
		leave()
		receive(t, done)
		receive(t, g.left)
		f.eventually("the abort is counted", func() bool {
			return f.metric(`berth_releases_total{cause="client_gone",model="m"}`) == float64(n+1)
		})
	}
	if got := f.state("a") + " " + f.state("b"); got != "serving serving" {
		t.Errorf("the states are %s", got)
	}
}

// If all replicas fail, requests are still tried, and none is ejected.
func TestCircuitTriesRequestsWhenAllFail(t *testing.T) {
	var calls [2]atomic.Int32
	fails := func(n int) string {
		return upstream(t, func(w http.ResponseWriter, _ *http.Request) {
			calls[n].Add(1)
			w.WriteHeader(502)
		})
	}
	f := serve(t, modelOn("m", fails(0), fails(1)))
	for range 30 {
		if r := f.chat("m"); r.StatusCode != 502 {
			t.Fatalf("got %d %s", r.StatusCode, r.body)
		}
	}
	if a, b := calls[0].Load(), calls[1].Load(); a+b > 60 || min(a, b) < 15 || f.state("a")+f.state("b") != "servingserving" {
		t.Errorf("they got %d and %d requests, and are %s and %s", a, b, f.state("a"), f.state("b"))
	}
}
