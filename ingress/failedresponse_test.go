package ingress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"

	"berth/internal/body"
	"berth/llmserver"
	"berth/routers"
	"berth/streaming"
)

// answering returns the URL of a replica that always sends the same response, and counts its
// responses.
func answering(t *testing.T, status int, body string) (string, *atomic.Int32) {
	calls := new(atomic.Int32)
	return upstream(t, func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Retry-After", "7")
		w.Header().Set("X-Request-Id", "the engine's own")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		io.WriteString(w, body)
	}), calls
}

const queueFull = `{"object":"error","message":"The request queue is full.","code":503}`

func TestBusyEngineIsRetriedElsewhere(t *testing.T) {
	busy, asked := answering(t, 503, queueFull)
	f := serve(t, modelOn("m", busy, upstream(t, ok)))
	for range 4 {
		if r := f.chat("m"); r.StatusCode != 200 || r.body != "ok" {
			t.Errorf("got %d %s", r.StatusCode, r.body)
		}
	}
	if n := f.metric(`berth_retries_total{model="m",reason="engine_busy"}`); n == 0 || n != float64(asked.Load()) {
		t.Errorf("counted %v retries after %d busy responses", n, asked.Load())
	}
}

func TestBusyEverywherePassesLastResponse(t *testing.T) {
	a, askedA := answering(t, 503, queueFull)
	b, askedB := answering(t, 503, queueFull)
	f := serve(t, modelOn("m", a, b))
	r := f.chat("m")
	if r.StatusCode != 503 || r.body != queueFull || r.Header.Get("Retry-After") != "7" || strings.Contains("the engine's own", r.Header.Get("X-Request-Id")) {
		t.Errorf("got %d %s with header %v", r.StatusCode, r.body, r.Header)
	}
	if askedA.Load() != 1 || askedB.Load() != 1 {
		t.Errorf("asked %d and %d times, want each once", askedA.Load(), askedB.Load())
	}
}

func TestBusyResponseIsInAccessLog(t *testing.T) {
	busy, _ := answering(t, 503, queueFull)
	f, path := logging(t, modelOn("m", busy))
	f.chat("m")
	wantFields(t, f.logged(path, 1)[0], map[string]any{"status": 503.0, "attempts": 1.0, "replica": "a", "bytes_out": float64(len(queueFull))})
}

// The Retry-After of a full queue is the time to drain it at the measured rate.
func TestBusyRetryAfterFollowsQueue(t *testing.T) {
	for _, failure := range []error{routers.ErrQueueFull, routers.ErrOverloaded, routers.ErrQueueTimeout, asQueueTimeout(routers.ErrDeadline)} {
		synctest.Test(t, func(t *testing.T) {
			r := registryFor(t, new(record), configured(narrow(modelOn("m", refusing(1)))))
			defer r.close()
			m := r.table.Load().findModel("m")
			holder, err := m.router.Choose(t.Context(), new(routers.Payload))
			if err != nil {
				t.Fatal(err)
			}
			defer holder.Release()
			ctx, leave := context.WithCancel(t.Context())
			go m.router.Choose(ctx, new(routers.Payload))
			time.Sleep(5 * time.Second) // while nothing drains
			recorder := httptest.NewRecorder()
			c, _ := gin.CreateTestContext(recorder)
			state := newRequestState(c)
			c.Request = httptest.NewRequest("POST", "/v1/completions", nil)
			(&proxyRequest{c: c, record: &state.record, body: new(body.Body), model: m}).respondError(failure)
			if after, err := strconv.Atoi(recorder.Header().Get("Retry-After")); err != nil || after < 48 || after > 60 {
				t.Errorf("%v: Retry-After is %q s; want about 60", failure, recorder.Header().Get("Retry-After"))
			}
			leave()
			synctest.Wait()
		})
	}
}

func TestBusyResponsePassesOnLastAttempt(t *testing.T) {
	a, askedA := answering(t, 429, `{"error":"Model is overloaded","error_type":"overloaded"}`)
	b, askedB := answering(t, 429, `{"error":"Model is overloaded","error_type":"overloaded"}`)
	m := modelOn("m", a, b)
	m.MaxAttempts = 1
	f := serve(t, m)
	if r := f.chat("m"); r.StatusCode != 429 || !strings.Contains(r.body, "overloaded") {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
	if n := askedA.Load() + askedB.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// A failure that two replicas share reaches the client as the replica has sent it, after two
// attempts at most.
func TestFailedResponseOfTwoReplicasPasses(t *testing.T) {
	for _, row := range []struct {
		status, attempts int
		body             string
	}{
		{500, 2, `{"error":{"message":"EngineCore encountered an issue."}}`},
		{500, 2, `{"error":"prompt is too long"}`},
		{502, 2, ""},
		{503, 2, "no mark"},
		{404, 3, "{\"message\":\"The model `m` does not exist.\"}"}, // nothing was done
		{503, 1, queueFull + strings.Repeat(" ", maxKeptBody)},      // too long to be kept
		{404, 1, `{"detail":"Not Found"}`},
		{400, 1, "{}"},
		{429, 1, "{}"},
		{501, 1, ""},
	} {
		a, askedA := answering(t, row.status, row.body)
		b, askedB := answering(t, row.status, row.body)
		c, askedC := answering(t, row.status, row.body)
		f := serve(t, modelOn("m", a, b, c))
		r := f.chat("m")
		if r.StatusCode != row.status || r.body != row.body || r.Header.Get("Retry-After") != "7" || r.Header.Get("X-Request-Id") == "the engine's own" {
			t.Errorf("got %d %.80s, want %.80s", r.StatusCode, r.body, row.body)
		}
		if n := askedA.Load() + askedB.Load() + askedC.Load(); int(n) != row.attempts {
			t.Errorf("asked %d times after %d %.80s; want %d", n, row.status, row.body, row.attempts)
		}
		if f.state("a")+f.state("b")+f.state("c") != "servingservingserving" {
			t.Error("a replica is ejected")
		}
	}
}

// A failure of one replica is hidden from clients, and the replica is ejected for it.
func TestFailedResponseOfOneReplicaIsHidden(t *testing.T) {
	for _, row := range []struct {
		status       int
		body, reason string
	}{
		{500, `{"error":"out of memory"}`, "server_error"},
		{502, "", "server_error"},
		{503, "", "server_error"},
		{500, `{"error":{"message":"EngineCore encountered an issue.","type":"EngineDeadError"}}`, "engine_dead"},
		{404, "{\"message\":\"The model `m` does not exist.\"}", "model_not_served"},
	} {
		sick, asked := answering(t, row.status, row.body)
		f := serve(t, modelOn("m", sick, upstream(t, ok), upstream(t, ok)))
		for n := range 40 {
			r := f.do(t.Context(), f.h1, "POST", "/v1/completions", strings.NewReader(fmt.Sprintf(`{"model":"m","prompt":"%d"}`, n)))
			if r.StatusCode != 200 || r.body != "ok" {
				t.Errorf("got %d %s", r.StatusCode, r.body)
			}
		}
		f.idle()
		if n := asked.Load(); n < 5 || n > 6 || f.state("a") != "ejected" && f.state("a") != "half_open" {
			t.Errorf("after %d responses with %d %s the replica is %s", n, row.status, row.body, f.state("a"))
		}
		if n := f.metric(`berth_retries_total{model="m",reason="` + row.reason + `"}`); n != float64(asked.Load()) {
			t.Errorf("counted %v retries", n)
		}
	}
}

// The same request again and again is no less evidence, since siblings serve it.
func TestFailedResponsesToOneRepeatedRequestEjectAReplica(t *testing.T) {
	sick, asked := answering(t, 500, "")
	f := serve(t, modelOn("m", sick, upstream(t, ok)))
	for range 40 {
		if r := f.chat("m"); r.body != "ok" {
			t.Errorf("got %d %s", r.StatusCode, r.body)
		}
	}
	if n := asked.Load(); n > 6 {
		t.Errorf("the replica got %d requests", n)
	}
}

// A client whose requests break whatever replica they reach takes none out of use, wherever its
// session is bound to.
func TestFailedResponsesToOneClientEjectNoReplica(t *testing.T) {
	serves := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), "bad") {
			w.WriteHeader(500)
		} else {
			ok(w, r)
		}
	})
	m := modelOn("m", serves, serves+"/b", serves+"/c")
	m.Router.Class = "ConsistentHashRouter"
	f := serve(t, m)
	for n := range 60 {
		f.post("/v1/completions", fmt.Sprintf(`{"model":"m","prompt":"bad %d"}`, n), "X-Session-Id", "one")
		for session := range 6 {
			if n%10 > 0 && session%2 > 0 {
				continue // most of the traffic of its replicas is this client's
			}
			r := f.post("/v1/completions", fmt.Sprintf(`{"model":"m","prompt":"%d"}`, n), "X-Session-Id", strconv.Itoa(session))
			if r.body != "ok" {
				t.Fatalf("got %d %s", r.StatusCode, r.body)
			}
		}
	}
	for _, id := range []string{"a", "b", "c"} {
		if n := f.metric(`berth_replica_ejections_total{model="m",replica="` + id + `"}`); n != 0 {
			t.Errorf("%s was ejected %v times", id, n)
		}
	}
}

// When all replicas fail, retries stay within the budget.
func TestFailedResponsesOfTheWholeFleetAreRetriedWithinTheBudget(t *testing.T) {
	a, askedA := answering(t, 500, "")
	b, askedB := answering(t, 500, "")
	f := serve(t, modelOn("m", a, b))
	const requests = 300
	for range requests {
		if r := f.chat("m"); r.StatusCode != 500 {
			t.Fatalf("got %d %s", r.StatusCode, r.body)
		}
	}
	if n := askedA.Load() + askedB.Load(); n > requests+requests/retryShare+retryReserve || n < requests+requests/retryShare {
		t.Errorf("%d requests became %d", requests, n)
	}
	if f.state("a")+f.state("b") != "servingserving" {
		t.Errorf("they are %s and %s", f.state("a"), f.state("b"))
	}
}

// A retry would not reach another replica, so none is counted.
func TestFailedResponseOfASingleReplicaPasses(t *testing.T) {
	a, asked := answering(t, 500, `{"error":"its own"}`)
	f := serve(t, modelOn("m", a))
	for range 20 {
		if r := f.chat("m"); r.StatusCode != 500 || r.body != `{"error":"its own"}` {
			t.Errorf("got %d %s", r.StatusCode, r.body)
		}
	}
	if _, retried := f.series(`berth_retries_total{model="m",reason="server_error"}`); retried || asked.Load() != 20 || f.state("a") != "serving" {
		t.Errorf("retried: %t, asked %d times, %s", retried, asked.Load(), f.state("a"))
	}
}

// A request that may create something that stays is sent again only after a refusal.
func TestFailedResponseToStoringRequestIsNotRetried(t *testing.T) {
	for _, row := range []struct {
		path, body string
		stores     bool
	}{
		{"/v1/responses", `{"model":"m","input":"x"}`, true},
		{"/v1/responses", `{"model":"m","input":"x","store":false}`, false},
		{"/v1/responses", `{"model":"m","input":"x","store":false,"background":true}`, true},
		{"/v1/chat/completions", `{"model":"m","messages":[],"store":true}`, true},
		{"/v1/chat/completions", `{"model":"m","messages":[],"store":false}`, false},
		{"/v1/chat/completions", `{"model":"m","messages":[]}`, false},
	} {
		for name, fail := range map[string]struct {
			handler http.HandlerFunc
			refusal bool
		}{
			"500":         {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, false},
			"engine dead": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "EngineDeadError", 500) }, false},
			"broken":      {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false},
			"queue full":  {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, queueFull, http.StatusServiceUnavailable) }, true},
			"no model":    {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "model_not_found", 404) }, true},
		} {
			var sent atomic.Int32
			first := func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				if sent.Add(1) == 1 {
					fail.handler(w, r)
				} else {
					ok(w, r)
				}
			}
			f := serve(t, modelOn("m", upstream(t, first), upstream(t, first)))
			r := f.do(t.Context(), f.h1, "POST", row.path, strings.NewReader(row.body))
			if again := sent.Load() == 2; again != (fail.refusal || !row.stores) || again != (r.StatusCode == 200) {
				t.Errorf("%s %s after %s: sent %d times, and got %d", row.path, row.body, name, sent.Load(), r.StatusCode)
			}
		}
	}
}

func TestFailedResponseThatBreaksIsUpstreamError(t *testing.T) {
	f := serve(t, modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(503)
		io.WriteString(w, "The request queue")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})))
	wantError(t, f.chat("m"), 502, "upstream_broken", "")
}

// A replica is blamed for a broken response, but not for berth's own timeout.
func TestBrokenResponseBlamesReplica(t *testing.T) {
	for name, test := range map[string]struct {
		err     error
		failure bool
	}{
		"broken":      {fmt.Errorf("%w: EOF", streaming.ErrUpstreamBroken), true},
		"a timeout":   {fmt.Errorf("%w: %w", streaming.ErrUpstreamBroken, &streaming.AbortError{}), false},
		"client gone": {streaming.ErrClientGone, false},
	} {
		err := attributeError(test.err)
		if errors.Is(err, llmserver.ErrBroken) != test.failure || !errors.Is(err, test.err) {
			t.Errorf("%s: attributed as %v", name, err)
		}
	}
}

func TestClientsThatWereTurnedAwayDoNotComeBackTogether(t *testing.T) {
	if d := jitter(0); d != 0 {
		t.Errorf("no advice became %v", d)
	}
	seen := make(map[time.Duration]bool)
	for range 200 {
		d := jitter(10 * time.Second)
		if d < 8*time.Second || d > 12*time.Second {
			t.Fatalf("10 s became %v", d)
		}
		seen[d] = true
		if d := jitter(time.Second); d < time.Second || d > 1200*time.Millisecond {
			t.Fatalf("1 s became %v", d)
		}
		if d := jitter(time.Minute); d < 48*time.Second || d > time.Minute {
			t.Fatalf("60 s became %v", d)
		}
	}
	if len(seen) < 100 {
		t.Errorf("only %d different delays", len(seen))
	}
}

func TestBusyCountsGrantedReservations(t *testing.T) {
	f := serve(t, modelOn("m", upstream(t, ok)))
	for range 3 {
		f.chat("m")
	}
	if n := f.metric(`berth_reservations_total{model="m",outcome="accepted"}`); n != 3 {
		t.Errorf("counted %v", n)
	}
}

// An engine that dies within streams ends them with an error event and no break.
func TestFailedStreamsEjectAReplica(t *testing.T) {
	dying := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {\"error\":{\"message\":\"EngineCore encountered an issue.\"}}\n\ndata: [DONE]\n\n")
	})
	f := serve(t, modelOn("m", dying, upstream(t, ok)))
	for n := range 40 {
		f.chatAbout(n)
	}
	f.idle()
	if n := f.metric(`berth_replica_ejections_total{model="m",replica="a"}`); n == 0 {
		t.Error("the replica was never ejected")
	}
}

// A whole response that is no JSON reaches the client, is a failure, and no success before that: the
// replica is ejected, and a trial of the same kind does not bring it back.
func TestFailedResponseThatIsNoJSONEjectsAReplica(t *testing.T) {
	sick, asked := answering(t, 200, "<html>")
	good, _ := answering(t, 200, goodCompletion)
	f := serve(t, modelOn("m", sick, good))
	for n := range 40 {
		if r := f.chatAbout(n); r.StatusCode != 200 || r.body != goodCompletion && r.body != "<html>" {
			t.Errorf("got %d %s", r.StatusCode, r.body)
		}
	}
	f.idle()
	if n := asked.Load(); n > 6 || f.metric(`berth_replica_ejections_total{model="m",replica="a"}`) != 1 {
		t.Errorf("the replica got %d requests, and is %s", n, f.state("a"))
	}
}
