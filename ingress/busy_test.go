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

func TestBusyOther503Passes(t *testing.T) {
	for _, body := range []string{
		`{"error":{"message":"EngineCore encountered an issue."}}`,
		"",
		queueFull + strings.Repeat(" ", maxBusyBody), // longer than maxBusyBody
	} {
		a, askedA := answering(t, 503, body)
		b, askedB := answering(t, 503, body)
		f := serve(t, modelOn("m", a, b))
		if r := f.chat("m"); r.StatusCode != 503 || r.body != body {
			t.Errorf("got %d %.80s, want %.80s", r.StatusCode, r.body, body)
		}
		if n := askedA.Load() + askedB.Load(); n != 1 {
			t.Errorf("asked %d times after %.80s", n, body)
		}
	}
}

func TestBusyResponseThatBreaksIsUpstreamError(t *testing.T) {
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

// A replica is blamed only for a response that breaks before its first byte, and not by berth's own
// timeout.
func TestBusyBreakBeforeFirstByteBlamesReplica(t *testing.T) {
	broken := fmt.Errorf("%w: EOF", streaming.ErrUpstreamBroken)
	for name, test := range map[string]struct {
		started bool
		err     error
		failure bool
	}{
		"before the first byte": {false, broken, true},
		"within the stream":     {true, broken, false},
		"a timeout":             {false, fmt.Errorf("%w: %w", streaming.ErrUpstreamBroken, &streaming.AbortError{}), false},
		"client gone":           {false, streaming.ErrClientGone, false},
	} {
		err := attributeError(streaming.Result{Started: test.started}, test.err)
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
