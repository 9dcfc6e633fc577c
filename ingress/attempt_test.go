package ingress

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"berth/ingress/telemetry"
	"berth/llmserver"
)

// The reasons are labels of the metric of retries.
func TestRetryReasonOfEachError(t *testing.T) {
	for err, want := range map[error]string{
		llmserver.ErrNoConnection: "no_connection",
		llmserver.ErrExhausted:    "exhausted",
		llmserver.ErrGone:         "replica_gone",
		llmserver.ErrBusy:         "engine_busy",
		llmserver.ErrFull:         "refused",
		llmserver.ErrDraining:     "refused",
		llmserver.ErrToken:        "refused",
		llmserver.ErrBroken:       "broken",
		llmserver.ErrTimeout:      "timeout",
		llmserver.ErrNotHTTP:      "invalid",
		llmserver.ErrSilent:       "silent",
		llmserver.ErrEngineDead:   "engine_dead",
		context.Canceled:          "",
	} {
		c, _ := gin.CreateTestContext(httptest.NewRecorder())
		c.Request = httptest.NewRequest(http.MethodPost, "/v1/completions", nil)
		x := &proxyRequest{c: c}
		if got := x.retryReason(fmt.Errorf("replica a: %w", err)); got != want {
			t.Errorf("%v is retried as %q; want %q", err, got, want)
		}
		if got := x.retryReason(err); x.retriedOnce && got != "" {
			t.Errorf("%v is retried twice", err)
		}
		if got := (&proxyRequest{c: c, stores: true}).retryReason(err); x.retriedOnce && got != "" {
			t.Errorf("%v is retried for a request that may have stored something", err)
		}
		ctx, leave := context.WithCancel(t.Context())
		leave()
		c.Request = c.Request.WithContext(ctx)
		if got := (&proxyRequest{c: c}).retryReason(err); got != "" {
			t.Errorf("%v is retried for a client that has gone", err)
		}
	}
}

// attempts is a backend that records the contexts of its requests and fails the first of them.
type attempts struct {
	llmserver.Backend
	mu       *sync.Mutex
	contexts *[]context.Context
}

func (a attempts) Do(req *http.Request, t llmserver.Token) (*http.Response, llmserver.Report, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, earlier := range *a.contexts {
		if earlier.Err() == nil {
			return nil, llmserver.Report{}, fmt.Errorf("%w: an earlier attempt is still under way", llmserver.ErrNotHTTP)
		}
	}
	if *a.contexts = append(*a.contexts, req.Context()); len(*a.contexts) == 1 {
		return nil, llmserver.Report{}, llmserver.ErrNoConnection
	}
	return a.Backend.Do(req, t)
}

// Everything of an attempt, its timers and its context, ends before the next one begins.
func TestAttemptEndsBeforeTheNextOne(t *testing.T) {
	f := serve(t, modelOn("n", refusing(1)))
	var mu sync.Mutex
	var contexts []context.Context
	f.registry.pool.Dial = func(e llmserver.Endpoint) (llmserver.Backend, error) {
		b, err := dialBackend(e)
		return attempts{b, &mu, &contexts}, err
	}
	m := modelOn("m", upstream(t, ok), upstream(t, ok))
	m.FirstByteTimeout, m.IdleTimeout = time.Hour, time.Hour
	f.mustApply(m)
	if r := f.post("/v1/completions", streamed("m")); r.body != "ok" {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
	if len(contexts) != 2 {
		t.Errorf("%d attempts were made; want 2", len(contexts))
	}
}

// The memory of a request body is released when the response begins, not at its end.
func TestAttemptReleasesTheBodyWhenTheResponseBegins(t *testing.T) {
	end := make(chan struct{})
	finish := sync.OnceFunc(func() { close(end) })
	defer finish()
	f := serve(t, modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		writes("data: {}\n\n")(w)
		<-end
	})))
	body := `{"model":"m","stream":true,"prompt":"` + strings.Repeat("x", 100_000) + `"}`
	response := f.background(func() reply { return f.post("/v1/completions", body) })
	f.eventually("the response has begun", func() bool {
		n, _ := f.series(`berth_slots{model="m",replica="a",state="running"}`)
		return n == 1 && f.budget.Held() == 0
	})
	finish()
	if r := receive(t, response); r.StatusCode != 200 || r.err != nil {
		t.Errorf("got %d %v", r.StatusCode, r.err)
	}
}

// staleOnce is a backend whose pooled connection turns out to be closed at its first use.
type staleOnce struct {
	llmserver.Backend
	used *atomic.Bool
}

func (s staleOnce) Do(req *http.Request, t llmserver.Token) (*http.Response, llmserver.Report, error) {
	if !s.used.Swap(true) {
		return nil, llmserver.Report{}, fmt.Errorf("%w: EOF", llmserver.ErrStale)
	}
	return s.Backend.Do(req, t)
}

func TestStoredResponseRequestIsRetriedOnAFreshConnection(t *testing.T) {
	f := serve(t, modelOn("n", refusing(1)))
	f.registry.pool.Dial = func(e llmserver.Endpoint) (llmserver.Backend, error) {
		b, err := dialBackend(e)
		return staleOnce{b, new(atomic.Bool)}, err
	}
	f.mustApply(modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", "the engine's own")
		ok(w, r)
	})))
	f.owners.setOwner("resp_1", f.model("m").replicas[0])
	r := f.get("/v1/responses/resp_1")
	if r.StatusCode != 200 || r.body != "ok" {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
	if id := r.Header.Get("X-Request-Id"); id == "" || id == "the engine's own" {
		t.Errorf("the client got the request ID %q; want the one that berth logs", id)
	}
}

func TestStoredResponseFailureIsCountedAsUpstreamError(t *testing.T) {
	broken, _ := breaking(t)
	f := serve(t, modelOn("m", broken, refusing(1)))
	for i, phase := range []string{telemetry.PhaseFirstByte, telemetry.PhaseConnect} {
		f.owners.setOwner("resp_1", f.model("m").replicas[i])
		if r := f.get("/v1/responses/resp_1"); r.StatusCode < 500 {
			t.Errorf("got %d %s", r.StatusCode, r.body)
		}
		if n := f.metric(`berth_upstream_errors_total{model="m",phase="` + phase + `"}`); n != 1 {
			t.Errorf("counted %v errors in the phase %s", n, phase)
		}
	}
}

// A stored response that breaks off does not look complete.
func TestStoredResponseThatBreaksOffIsAborted(t *testing.T) {
	f := serve(t, modelOn("m", upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})))
	f.owners.setOwner("resp_1", f.model("m").replicas[0])
	for _, client := range []*http.Client{f.h1, f.h2} {
		if r := f.do(t.Context(), client, "GET", "/v1/responses/resp_1", nil); r.err == nil || r.body != "half" {
			t.Errorf("the client read %q and then %v", r.body, r.err)
		}
	}
}
