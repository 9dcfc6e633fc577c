package ingress

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth/config"
)

const (
	goodCompletion    = `{"choices":[{"message":{"content":"good"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}}`
	abortedCompletion = `{"choices":[{"message":{"content":"cut"},"finish_reason":"abort","stop_reason":null}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`
)

// serveFirst serves a model whose round robin begins with its first replica.
func serveFirst(t *testing.T, m config.Model) *front {
	f := serve(t, m)
	f.turn("m")
	return f
}

func TestEngineAbortIsRetriedElsewhere(t *testing.T) {
	a, askedA := answering(t, 200, abortedCompletion)
	b, askedB := answering(t, 200, goodCompletion)
	f := serveFirst(t, modelOn("m", a, b))
	r := f.post("/v1/chat/completions", chat("m"), "x-request-id", "r-1")
	if r.StatusCode != 200 || r.body != goodCompletion || askedA.Load() != 1 || askedB.Load() != 1 {
		t.Errorf("got %d %s after %d and %d requests", r.StatusCode, r.body, askedA.Load(), askedB.Load())
	}
	if n := f.metric(`berth_retries_total{model="m",reason="engine_aborted"}`); n != 1 {
		t.Errorf("counted %v retries", n)
	}
	if n := f.metric(`berth_engine_aborts_total{model="m"}`); n != 1 {
		t.Errorf("counted %v aborts", n)
	}
	if log := f.log.take(); strings.Count(log, "an engine aborted a response") != 1 || !strings.Contains(log, "replica=a model=m stream=false request_id=r-1") {
		t.Errorf("log %s", log)
	}
	if n := f.metric(`berth_tokens_total{key="",kind="completion",model="m"}`); n != 5 {
		t.Errorf("counted %v tokens, want those of the second response", n)
	}
	// One aborted request is no evidence against the replica; a probe decides.
	if a, b := f.state("a"), f.state("b"); a != "serving" || b != "serving" {
		t.Errorf("the replicas are %s and %s", a, b)
	}
	f.idle()
}

// Then the client gets what there is, unchanged.
func TestEngineAbortEverywherePassesTheResponse(t *testing.T) {
	aborts := func() (string, *atomic.Int32) { return answering(t, 200, abortedCompletion) }
	a, askedA := aborts()
	b, askedB := aborts()
	c, askedC := aborts()
	busy, _ := answering(t, 503, queueFull)
	single := modelOn("m", a)
	single.MaxAttempts = 1
	for name, row := range map[string]struct {
		m    config.Model
		want int32 // requests to a, b and c
	}{
		"one replica":    {modelOn("m", a), 1},
		"one attempt":    {single, 1},
		"two aborts":     {modelOn("m", a, b, c), 2},
		"a busy sibling": {modelOn("m", a, busy), 1},
		"no sibling":     {modelOn("m", a, refusing(1)), 1},
	} {
		askedA.Store(0)
		askedB.Store(0)
		askedC.Store(0)
		f := serveFirst(t, row.m)
		r := f.chat("m")
		if r.StatusCode != 200 || r.body != abortedCompletion || r.Header.Get("Retry-After") != "7" || r.Header.Get("X-Request-Id") == "the engine's own" {
			t.Errorf("%s: got %d %s with header %v", name, r.StatusCode, r.body, r.Header)
		}
		if n := askedA.Load() + askedB.Load() + askedC.Load(); n != row.want {
			t.Errorf("%s: %d requests, want %d", name, n, row.want)
		}
		if n := f.metric(`berth_tokens_total{key="",kind="completion",model="m"}`); n != 2 {
			t.Errorf("%s: counted %v tokens", name, n)
		}
		f.idle()
	}
}

// The bytes of a stream, and of what creates something that stays, pass unchanged.
func TestEngineAbortIsNotRetriedAfterTheFirstByte(t *testing.T) {
	const stream = `data: {"choices":[{"delta":{"content":"cut"},"finish_reason":null}]}` + "\n\n" +
		`data: {"choices":[{"delta":{"content":""},"finish_reason":"abort"}]}` + "\n\ndata: [DONE]\n\n"
	aborts := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), `"stream":true`) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, stream)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, abortedCompletion)
	})
	good, asked := answering(t, 200, goodCompletion)
	f := serveFirst(t, modelOn("m", aborts, good))
	if r := f.post("/v1/chat/completions", streamed("m")); r.body != stream {
		t.Errorf("got %q", r.body)
	}
	if n := f.metric(`berth_engine_aborts_total{model="m"}`); n != 1 {
		t.Errorf("counted %v aborts", n)
	}
	if log := f.log.take(); !strings.Contains(log, "replica=a model=m stream=true request_id=") {
		t.Errorf("log %s", log)
	}
	f.turn("m")
	if r := f.post("/v1/responses", chat("m")); r.body != abortedCompletion || asked.Load() != 0 {
		t.Errorf("got %q after %d requests to the sibling", r.body, asked.Load())
	}
	// An engine may not stream although the client asked for it.
	unstreamed, _ := answering(t, 200, abortedCompletion)
	f = serveFirst(t, modelOn("m", unstreamed, good))
	if r := f.post("/v1/chat/completions", streamed("m")); r.body != abortedCompletion || asked.Load() != 0 {
		t.Errorf("got %q after %d requests to the sibling", r.body, asked.Load())
	}
}

// rawUpstream answers with a literal response and closes the connection.
func rawUpstream(t *testing.T, response string) (string, *atomic.Int32) {
	calls := new(atomic.Int32)
	return upstream(t, func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		io.Copy(io.Discard, r.Body)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		io.WriteString(conn, response)
		conn.Close()
	}), calls
}

func TestResponseThatIsNotWholeIsRetriedOnce(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
	known := fmt.Sprintf("%sContent-Length: %d\r\n\r\n", head, len(goodCompletion))
	for name, row := range map[string]struct{ response, reason, code string }{
		"cut":            {known + goodCompletion[:40], "broken", "upstream_broken"},
		"cut in a chunk": {head + "Transfer-Encoding: chunked\r\n\r\n28\r\n" + goodCompletion[:40] + "\r\n", "broken", "upstream_broken"},
		"nothing":        {known, "broken", "upstream_broken"},
		"cut, no length": {head + "Connection: close\r\n\r\n" + goodCompletion[:40], "broken", "upstream_broken"},
	} {
		sick, asked := rawUpstream(t, row.response)
		good, _ := answering(t, 200, goodCompletion)
		f := serveFirst(t, modelOn("m", sick, good))
		if r := f.chat("m"); r.StatusCode != 200 || r.body != goodCompletion || asked.Load() != 1 {
			t.Errorf("%s: got %d %s after %d requests", name, r.StatusCode, r.body, asked.Load())
		}
		if n := f.metric(`berth_retries_total{model="m",reason="` + row.reason + `"}`); n != 1 {
			t.Errorf("%s: counted %v retries", name, n)
		}
		f.idle()
		b, askedB := rawUpstream(t, row.response)
		c, askedC := rawUpstream(t, row.response)
		f = serveFirst(t, modelOn("m", b, c, good))
		if r := f.chat("m"); r.StatusCode != 502 || !strings.Contains(r.body, `"code":"`+row.code+`"`) || askedB.Load() != 1 || askedC.Load() != 1 {
			t.Errorf("%s twice: got %d %s after %d and %d requests", name, r.StatusCode, r.body, askedB.Load(), askedC.Load())
		}
	}
}

// What engines make of JSON is theirs, even none of a stated length, and only a successful response is looked at.
func TestResponseThatMayBeJSONPasses(t *testing.T) {
	for _, body := range []string{`{"logprob":NaN}`, " [1,-Infinity]\n", "null", "3.5", `"text"`, "<html>", "", `{"cut":`, `{"choices":[]}` + "\r\n\x00"} {
		url, _ := answering(t, 200, body)
		if r := serve(t, modelOn("m", url)).chat("m"); r.StatusCode != 200 || r.body != body {
			t.Errorf("%q came as %d %q", body, r.StatusCode, r.body)
		}
	}
	url, asked := answering(t, 400, "not JSON")
	if r := serve(t, modelOn("m", url)).chat("m"); r.StatusCode != 400 || r.body != "not JSON" || asked.Load() != 1 {
		t.Errorf("got %d %q", r.StatusCode, r.body)
	}
}

// A timeout within a held response ends the request.
func TestResponseHeldUntilATimeoutIsNotRetried(t *testing.T) {
	calls := new(atomic.Int32)
	slow := func() string {
		return upstream(t, func(w http.ResponseWriter, r *http.Request) {
			calls.Add(1)
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
	}
	m := modelOn("m", slow(), slow())
	m.UnstreamedFirstByteTimeout = 50 * time.Millisecond
	f := serve(t, m)
	if r := f.chat("m"); r.StatusCode != 504 || !strings.Contains(r.body, `"code":"upstream_first_byte_timeout"`) || calls.Load() != 1 {
		t.Errorf("got %d %s after %d requests", r.StatusCode, r.body, calls.Load())
	}
	f.idle()
}
