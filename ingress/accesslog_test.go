package ingress

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"berth/config"
)

// logging starts a server whose access log is the file that it returns.
func logging(t *testing.T, models ...config.Model) (*front, string) {
	t.Helper()
	c := configured(models...)
	c.Session = config.Default().Session
	c.AccessLog = filepath.Join(t.TempDir(), "access.jsonl")
	return serveConfig(t, c), c.AccessLog
}

// logged waits for n lines in the access log and returns them.
func (f *front) logged(path string, n int) (lines []map[string]any) {
	f.t.Helper()
	var text string
	f.eventually("the lines are written", func() bool {
		data, err := os.ReadFile(path)
		if err != nil {
			f.t.Fatal(err)
		}
		text = string(data)
		return strings.Count(text, "\n") >= n
	})
	for line := range strings.Lines(text) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			f.t.Fatalf("%v in %s", err, line)
		}
		lines = append(lines, fields)
	}
	if len(lines) != n {
		f.t.Fatalf("there are %d lines, want %d:\n%s", len(lines), n, text)
	}
	return lines
}

// wantFields compares some fields of a line; nil is one that must not be there.
func wantFields(t *testing.T, line, want map[string]any) {
	t.Helper()
	for name, value := range want {
		if line[name] != value {
			t.Errorf("%s is %v, want %v, in %v", name, line[name], value, line)
		}
	}
}

func TestARequestThatIsOverIsALineInTheAccessLog(t *testing.T) {
	const secret = "nobody's business"
	m := modelOn("m", refusing(1), playing(t, "text/event-stream", firstChunk+textChunk+strings.ReplaceAll(textChunk, "Hi", secret)+usageChunk+doneChunk))
	f, path := logging(t, m)
	f.turn("m")
	body := `{"model":"m:sql","stream":true,"messages":[{"role":"user","content":"` + secret + `"}]}`
	answer := f.post("/v1/chat/completions?q="+"nobody", body, "X-Request-Id", "r-1", "X-Session-Id", "s-1")
	f.get("/health")
	f.get("/metrics")
	line := f.logged(path, 1)[0]
	wantFields(t, line, map[string]any{
		"msg": "request", "request_id": "r-1", "client": "127.0.0.1", "method": "POST", "path": "/v1/chat/completions",
		"status": 200.0, "outcome": "finished", "code": nil, "key": nil, "model": "m", "adapter": "sql", "session": "s-1",
		"replica": "b", "policy": "RoundRobinRouter", "rank": 1.0, "attempts": 2.0, "stream": true, "error_event": nil,
		"bytes_in": float64(len(body)), "bytes_out": float64(len(answer.body)), "events": 4.0,
		"prompt_tokens": 40.0, "completion_tokens": 3.0, "cached_tokens": 32.0,
	})
	sum := 0.0
	for _, phase := range []string{"body_ms", "wait_ms", "first_byte_ms", "stream_ms"} {
		ms, ok := line[phase].(float64)
		if sum += ms; !ok || ms < 0 {
			t.Errorf("%s is %v", phase, line[phase])
		}
	}
	if total, ok := line["duration_ms"].(float64); !ok || total < sum {
		t.Errorf("phases of %v ms are more than %v ms", sum, line["duration_ms"])
	}
	if text, _ := json.Marshal(line); strings.Contains(string(text), "nobody") {
		t.Errorf("what was said is in the log: %s", text)
	}
}

func TestTheAccessLogTellsHowRequestsEnd(t *testing.T) {
	chunkThen := func(last func(http.ResponseWriter, *http.Request)) string {
		return upstream(t, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, textChunk)
			w.(http.Flusher).Flush()
			last(w, r)
		})
	}
	f, path := logging(t,
		modelOn("teapot", upstream(t, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.WriteHeader(418)
		})),
		modelOn("dying", chunkThen(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })),
		modelOn("erring", chunkThen(func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `data: {"error":{"message":"m"}}`+"\n\n"+doneChunk)
		})),
		modelOn("m", chunkThen(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })),
		modelOn("down", refusing(1)),
		modelOn("broken", upstream(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })),
	)
	slow := modelOn("slow", chunkThen(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	slow.IdleTimeout = 10 * time.Millisecond
	if err := f.Apply(f.with(slow)); err != nil {
		t.Fatal(err)
	}
	leaving := func() {
		ctx, leave := context.WithCancel(t.Context())
		f.stream(ctx, f.h1).read(len(textChunk))
		leave()
	}
	for i, test := range []struct {
		request func()
		want    map[string]any
	}{
		{func() { f.chat("teapot") }, map[string]any{"status": 418.0, "outcome": "finished", "model": "teapot", "replica": "a"}},
		{func() { f.chat("erring") }, map[string]any{"status": 200.0, "outcome": "finished", "error_event": true}},
		{func() { f.chat("dying") }, map[string]any{"status": 200.0, "outcome": "upstream_broken", "code": "upstream_broken", "events": 1.0}},
		{func() { f.post("/v1/completions", `{"model":"slow","stream":true}`) },
			map[string]any{"status": 200.0, "outcome": "upstream_broken", "code": "upstream_idle_timeout"}},
		{func() { f.chat("down") }, map[string]any{"status": 503.0, "outcome": "refused", "code": "no_replica_available"}},
		{func() { f.chat("broken") }, map[string]any{"status": 502.0, "outcome": "failed", "code": "upstream_broken", "first_byte_ms": nil}},
		{func() { f.chat("other") }, map[string]any{"status": 404.0, "outcome": "refused", "code": "model_not_found", "model": nil, "replica": nil}},
		{func() { f.post("/v1/completions", `{`) }, map[string]any{"status": 400.0, "outcome": "refused", "code": "invalid_json"}},
		{func() { f.get("/v1/models") }, map[string]any{"status": 200.0, "outcome": "finished", "method": "GET", "path": "/v1/models", "model": nil}},
		{func() { f.get("/v1/" + strings.Repeat("x", 200)) }, map[string]any{"status": 404.0, "outcome": "refused", "path": "sha256:33535cab60c59a97"}},
		{leaving, map[string]any{"status": 200.0, "outcome": "client_gone", "code": "client_gone", "events": 1.0, "bytes_out": float64(len(textChunk))}},
	} {
		test.request()
		wantFields(t, f.logged(path, i+1)[i], test.want)
	}
}

// with is the configuration that the server goes by, and one more model.
func (f *front) with(m config.Model) *config.Config {
	c := *f.registry.table.Load().config
	c.Models = append(slices.Clone(c.Models), m)
	return &c
}

func TestTheNameOfTheKeyIsCountedAndLogged(t *testing.T) {
	c := withKeys(configured(modelOn("m", playing(t, "text/event-stream", textChunk+usageChunk+doneChunk))), 9, map[string][]string{"alice": nil})
	c.AccessLog = filepath.Join(t.TempDir(), "access.jsonl")
	f := serveConfig(t, c)
	f.chatBy("alice", "m")
	f.chatBy("mallory", "m")
	lines := f.logged(c.AccessLog, 2)
	wantFields(t, lines[0], map[string]any{"key": "alice", "outcome": "finished"})
	wantFields(t, lines[1], map[string]any{"key": nil, "outcome": "refused", "status": 401.0})
	if n := f.metric(`berth_tokens_total{key="alice",kind="prompt",model="m"}`); n != 40 {
		t.Errorf("%v tokens are counted", n)
	}
	if text, err := os.ReadFile(c.AccessLog); err != nil || strings.Contains(string(text), "mallory") {
		t.Errorf("a key that nobody has is in the log (%v):\n%s", err, text)
	}
}

func TestStandardOutputStaysOpen(t *testing.T) {
	out, err := openAccessLog(config.ToStdout)
	if err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stdout.Stat(); err != nil {
		t.Error(err)
	}
}

func TestNamesOfClientsAreLoggedAsSentOnlyIfTheyAreShortAndPlain(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "",
		"conversation-7":         "conversation-7",
		strings.Repeat("x", 128): strings.Repeat("x", 128),
		strings.Repeat("x", 129): "sha256:0ec9eb33e74510bc",
		"a\nb":                   "sha256:7e18f737311b2dc3",
		"zoë":                    "sha256:2752b88686847fa5",
	} {
		if got := printable(text); got != want {
			t.Errorf("%q is logged as %q, want %q", text, got, want)
		}
	}
}

func TestTheAccessLogFollowsTheConfiguration(t *testing.T) {
	m := modelOn("m", upstream(t, ok))
	f, path := logging(t, m)
	f.chat("m")
	f.logged(path, 1)
	rotated := path + ".1"
	if err := os.Rename(path, rotated); err != nil {
		t.Fatal(err)
	}
	c := configured(m)
	c.AccessLog = path
	if err := f.Apply(c); err != nil { // as on SIGHUP
		t.Fatal(err)
	}
	f.chat("m")
	f.logged(path, 1)
	f.logged(rotated, 1)

	c = configured(m)
	c.AccessLog = filepath.Join(path, "no", "directory")
	if err := f.Apply(c); err == nil || f.metric("berth_config_last_reload_successful") != 0 {
		t.Errorf("a log that cannot be opened: %v", err)
	}
	f.chat("m")
	f.logged(path, 2)

	if err := f.Apply(configured(m)); err != nil {
		t.Fatal(err)
	}
	f.chat("m")
	f.end()
	f.logged(path, 2)
}

func TestTheAccessLogIsWholeWhenTheServerEnds(t *testing.T) {
	f, path := logging(t, modelOn("m", upstream(t, ok)))
	const n = 200
	for range n {
		f.chat("m")
	}
	f.drain()
	receive(t, f.served)
	f.Close()
	f.logged(path, n)
}

// BenchmarkAccessLog is what a line costs the request that it is about.
func BenchmarkAccessLog(b *testing.B) {
	var l accessLog
	out, err := openAccessLog(os.DevNull)
	if err != nil {
		b.Fatal(err)
	}
	l.use(out, newMetrics(), slog.New(slog.DiscardHandler))
	defer l.close()
	gin.SetMode(gin.ReleaseMode)
	c, _ := gin.CreateTestContext(httptest.NewRecorder())
	c.Request = httptest.NewRequest("POST", "/v1/chat/completions", nil)
	c.Request.Header.Set(requestIDHeader, "b5b9ae0c-3d31-4b5f-9a83-5d2cbe2f5d8c")
	x := enter(c).exchanging(new(Server), c, phaseBody)
	x.model = &model{config: modelOn("m")}
	x.trail = trail{attempts: 1, replica: "a", rank: 1, uploaded: x.began, dispatched: x.began}
	x.result.FirstByte = x.began
	b.ReportAllocs()
	for b.Loop() {
		l.record(c, time.Second)
	}
}
