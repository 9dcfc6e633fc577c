package ingress

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/config"
	"berth/routers"
)

// logged is a line of the log as its readers know it.
type logged struct {
	V            int      `json:"v"`
	TimeMS       float64  `json:"time_ms"`
	Model        string   `json:"model"`
	Session      *string  `json:"session"`
	PromptBytes  int      `json:"prompt_bytes"`
	BlockBytes   int      `json:"block_bytes"`
	Blocks       []string `json:"blocks"`
	Replica      string   `json:"replica"`
	Policy       string   `json:"policy"`
	Rank         int      `json:"rank"`
	Match        float64  `json:"match"`
	WaitedMS     float64  `json:"waited_ms"`
	TTFTMS       float64  `json:"ttft_ms"`
	DurationMS   float64  `json:"duration_ms"`
	InputTokens  *int     `json:"input_tokens"`
	OutputTokens *int     `json:"output_tokens"`
	Status       int      `json:"status"`
}

// serveLogged starts a server with a decision log. read closes the server and returns the lines in
// the order in which the requests began.
func serveLogged(t *testing.T, keyEnv string, models ...config.Model) (*front, func() []logged) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "decisions.jsonl")
	c := configured(models...)
	c.Session = config.Default().Session
	c.DecisionLog = config.DecisionLog{Path: path, KeyEnv: keyEnv}
	f := serveConfig(t, c)
	return f, func() (lines []logged) {
		t.Helper()
		f.drain()
		receive(t, f.served)
		f.Close()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			var l logged
			d := json.NewDecoder(bytes.NewReader(line))
			d.DisallowUnknownFields()
			if err := d.Decode(&l); err != nil {
				t.Fatalf("%v in %s", err, line)
			}
			lines = append(lines, l)
		}
		slices.SortFunc(lines, func(a, b logged) int { return cmp.Compare(a.TimeMS, b.TimeMS) })
		return lines
	}
}

const promptText = "an unmistakable piece of a client's text. "

func TestDecisionLogHasALineForEachRequestOfAModel(t *testing.T) {
	t.Setenv("LOG_KEY", "secret")
	g := gated(t)
	m := narrow(modelOn("m", g.url))
	m.Router.Class = "PrefixCacheAffinityRouter"
	usage := modelOn("u", playing(t, "text/event-stream", firstChunk+textChunk+usageChunk+doneChunk))
	f, read := serveLogged(t, "LOG_KEY", m, usage, modelOn("refused", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.WriteHeader(418)
	})))
	began := time.Now()
	prompt := strings.Repeat(promptText, 100)
	body := func(model string) string { return `{"model":"` + model + `","prompt":"` + prompt + `"}` }
	first := f.background(func() reply { return f.post("/v1/completions", body("m"), "X-Session-Id", "mine") })
	receive(t, g.arrived)
	second := f.background(func() reply { return f.post("/v1/completions", body("m")) })
	f.waiting("m", 1)
	g.open <- struct{}{}
	g.open <- struct{}{}
	receive(t, first)
	receive(t, second)
	f.post("/v1/chat/completions", chat("u"), "X-Session-Id", "mine")
	f.post("/v1/completions", body("refused"))
	f.post("/v1/completions", body("unknown")) // without a model there is nothing to replay
	lines := read()
	if len(lines) != 4 {
		t.Fatalf("there are %d lines: %+v", len(lines), lines)
	}
	for i, want := range []logged{
		{Model: "m", Policy: "PrefixCacheAffinityRouter", Status: 200, PromptBytes: len(prompt)},
		{Model: "m", Policy: "PrefixCacheAffinityRouter", Status: 200, PromptBytes: len(prompt), Match: 1},
		{Model: "u", Policy: "RoundRobinRouter", Status: 200, PromptBytes: len("\x01\"user\"\x02Hi")},
		{Model: "refused", Policy: "RoundRobinRouter", Status: 418, PromptBytes: len(prompt)},
	} {
		got := lines[i]
		if got.V != 1 || got.BlockBytes != routers.DefaultPrefixOptions.BlockBytes || got.Replica != "a" || got.Rank != 1 || got.Model != want.Model || got.Policy != want.Policy ||
			got.Status != want.Status || got.PromptBytes != want.PromptBytes || got.Match != want.Match || len(got.Blocks) != want.PromptBytes/routers.DefaultPrefixOptions.BlockBytes {
			t.Errorf("line %d is %+v", i, got)
		}
		if at := time.UnixMicro(int64(got.TimeMS * 1000)); at.Before(began.Add(-time.Millisecond)) || at.After(time.Now()) {
			t.Errorf("line %d is of %v", i, at)
		}
		if (got.TTFTMS > 0) != (i != 3) || got.DurationMS < got.TTFTMS || (got.WaitedMS > 0) != (i == 1) {
			t.Errorf("line %d has waited_ms %v, ttft_ms %v and duration_ms %v", i, got.WaitedMS, got.TTFTMS, got.DurationMS)
		}
		if (got.InputTokens != nil) != (i == 2) || i == 2 && (*got.InputTokens != 40 || *got.OutputTokens != 3) {
			t.Errorf("line %d has tokens %v and %v", i, got.InputTokens, got.OutputTokens)
		}
		if (got.Session != nil) != (i%2 == 0) || i == 2 && *got.Session != *lines[0].Session {
			t.Errorf("line %d is of session %v", i, got.Session)
		}
		for _, hash := range append(slices.Clone(got.Blocks), lines[0].Blocks[0], *lines[0].Session) {
			if !regexp.MustCompile(`^[0-9a-f]{16}$`).MatchString(hash) {
				t.Errorf("line %d has a hash %q", i, hash)
			}
		}
	}
	if !slices.Equal(lines[0].Blocks, lines[1].Blocks) || slices.Equal(lines[0].Blocks, lines[3].Blocks) {
		t.Error("the same prompt for the same model has other blocks, or for another model the same")
	}
}

// With the same key, logs of several processes have equal hashes; without it, guesses cannot be
// checked.
func TestDecisionLogHashesDependOnTheKey(t *testing.T) {
	t.Setenv("KEY_1", "one")
	t.Setenv("KEY_2", "two")
	body := `{"model":"m","prompt":"` + strings.Repeat(promptText, 100) + `"}`
	hashes := func(env string) string {
		f, read := serveLogged(t, env, modelOn("m", upstream(t, ok)))
		f.post("/v1/completions", body, "X-Session-Id", "mine")
		line := read()[0]
		text := fmt.Sprint(line.Blocks, *line.Session)
		for _, plain := range blocksOf(t, body, "m", routers.DefaultPrefixOptions.BlockBytes) {
			if strings.Contains(text, fmt.Sprintf("%016x", plain)) {
				t.Errorf("the log has the plain hash of a block")
			}
		}
		return text
	}
	one := hashes("KEY_1")
	if again := hashes("KEY_1"); again != one {
		t.Error("the same key gives different hashes")
	}
	random := hashes("")
	for _, other := range []string{hashes("KEY_2"), random, hashes("")} {
		if strings.Contains(other, one[1:17]) || other == one {
			t.Error("another key gives the same hashes")
		}
	}
}

func TestDecisionLogHasNoTextOfTheClient(t *testing.T) {
	t.Setenv("LOG_KEY", "the secret key")
	path := filepath.Join(t.TempDir(), "log")
	c := configured(modelOn("m", upstream(t, ok)))
	c.Session, c.DecisionLog = config.Default().Session, config.DecisionLog{Path: path, KeyEnv: "LOG_KEY"}
	f := serveConfig(t, c)
	f.post("/v1/completions", `{"model":"m:adapter-name","user":"user-name","prompt":"`+strings.Repeat(promptText, 100)+`"}`,
		"X-Session-Id", "their-session", "X-Request-Id", "their-id", "Authorization", "Bearer their-key")
	f.eventually("the line is written", func() bool {
		text, _ := os.ReadFile(path)
		return bytes.HasSuffix(text, []byte("\n"))
	})
	text, _ := os.ReadFile(path)
	for _, secret := range []string{"unmistakable", "adapter-name", "user-name", "their", "secret"} {
		if bytes.Contains(text, []byte(secret)) {
			t.Errorf("%s is in %s", secret, text)
		}
	}
}

func TestDecisionLogHasStatus499AfterADisconnect(t *testing.T) {
	g := gated(t)
	f, read := serveLogged(t, "", narrow(modelOn("m", g.url)))
	first := f.background(func() reply { return f.chat("m") })
	receive(t, g.arrived)
	conn, _ := f.raw("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" +
		fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(chat("m")), chat("m")))
	f.waiting("m", 1)
	conn.Close()
	f.waiting("m", 0)
	g.open <- struct{}{}
	receive(t, first)
	lines := read()
	if len(lines) != 2 {
		t.Fatalf("there are %d lines", len(lines))
	}
	slices.SortFunc(lines, func(a, b logged) int { return a.Status - b.Status })
	if l := lines[1]; l.Status != 499 || l.Replica != "" || l.Rank != 0 || l.TTFTMS != 0 || l.WaitedMS <= 0 || l.Blocks == nil {
		t.Errorf("the request of the client that disconnected is logged as %+v", l)
	}
}

// A log that was renamed is written until the next reload, which opens a new file. A log that was
// turned off gets no further lines.
func TestDecisionLogIsReopenedByAReload(t *testing.T) {
	dir := t.TempDir()
	c := configured(modelOn("m", upstream(t, ok)))
	c.Session = config.Default().Session
	next := *c
	next.DecisionLog = config.DecisionLog{Path: filepath.Join(dir, "log")}
	f := serveConfig(t, c)
	served := func(path string, lines int) (text string) {
		t.Helper()
		if r := f.post("/v1/completions", chat("m"), "X-Session-Id", "s"); r.body != "ok" {
			t.Fatalf("got %d %s", r.StatusCode, r.body)
		}
		f.eventually(fmt.Sprintf("%s has %d lines", filepath.Base(path), lines), func() bool {
			data, err := os.ReadFile(path)
			text = string(data)
			return strings.Count(text, "\n") == lines && (err == nil || lines == 0)
		})
		return text
	}
	apply := func(c *config.Config) {
		t.Helper()
		if err := f.Apply(c); err != nil {
			t.Fatal(err)
		}
	}
	path, moved := next.DecisionLog.Path, filepath.Join(dir, "moved")
	served(path, 0)
	apply(&next)
	served(path, 1)
	if err := os.Rename(path, moved); err != nil {
		t.Fatal(err)
	}
	served(moved, 2)
	apply(&next)
	first := served(path, 1)
	session := regexp.MustCompile(`"session":"[0-9a-f]{16}"`)
	if old, err := os.ReadFile(moved); err != nil || !strings.Contains(string(old), session.FindString(first)) || !session.MatchString(first) {
		t.Errorf("%v, or the same session has another hash after a reload", err)
	}
	apply(c)
	served(path, 1)
}

func TestDecisionLogThatCannotBeOpenedFailsTheStart(t *testing.T) {
	for _, log := range []config.DecisionLog{{Path: filepath.Join(t.TempDir(), "no", "such")}, {Path: t.TempDir()}, {Path: filepath.Join(t.TempDir(), "log"), KeyEnv: "NO_SUCH_VARIABLE"}} {
		c := configured(modelOn("m", refusing(1)))
		c.DecisionLog = log
		if s, err := New(c, slog.New(slog.DiscardHandler)); err == nil {
			s.Close()
			t.Errorf("with %+v the server started", log)
		}
	}
}

func TestDecisionLogHasAllConcurrentRequests(t *testing.T) {
	m := modelOn("m", upstream(t, ok))
	m.MaxQueuedRequests = -1
	f, read := serveLogged(t, "", m)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 25 {
				f.chat("m")
			}
		})
	}
	all.Wait()
	if lines := read(); len(lines) != 200 {
		t.Errorf("%d lines of 200 requests", len(lines))
	}
}

func TestDecisionHeadersAreSentIfConfigured(t *testing.T) {
	busy := gated(t)
	prefix, turns := modelOn("p", upstream(t, ok)), narrow(modelOn("t", busy.url, upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Berth-Rank", "that of another berth")
		w.Header().Set("X-Berth-Prefix-Match", "of another berth")
		ok(w, r)
	})))
	prefix.Router.Class = "PrefixCacheAffinityRouter"
	c := configured(prefix, turns)
	c.DecisionHeaders = true
	f := serveConfig(t, c)
	prompt := func(n int) string {
		return `{"model":"p","prompt":"` + strings.Repeat(promptText, n) + `"}`
	}
	want := func(r reply, values ...string) {
		t.Helper()
		for i, name := range []string{"X-Berth-Replica", "X-Berth-Policy", "X-Berth-Rank", "X-Berth-Prefix-Match"} {
			if got := r.Header[name]; values[i] == "" && got != nil || values[i] != "" && !slices.Equal(got, values[i:i+1]) {
				t.Errorf("%s is %q, want %q", name, got, values[i])
			}
		}
	}
	want(f.post("/v1/completions", prompt(50)), "a", "PrefixCacheAffinityRouter", "1", "0.00")
	f.idle()
	want(f.post("/v1/completions", prompt(50)), "a", "PrefixCacheAffinityRouter", "1", "1.00")
	f.idle()
	want(f.post("/v1/completions", prompt(100)), "a", "PrefixCacheAffinityRouter", "1", "0.50")
	f.turn("t")
	first := f.background(func() reply { return f.chat("t") })
	receive(t, busy.arrived)
	f.turn("t")
	want(f.chat("t"), "b", "RoundRobinRouter", "2", "")
	busy.open <- struct{}{}
	want(receive(t, first), "a", "RoundRobinRouter", "1", "")
	plain := configured(prefix, turns)
	if err := f.Apply(plain); err != nil {
		t.Fatal(err)
	}
	want(f.post("/v1/completions", prompt(50)), "", "", "", "")
}
