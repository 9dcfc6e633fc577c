package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/llmserver/simulated"
)

// aiperfCommand matches an aiperf command of docs/testing.md up to its report directory, and
// aiperfCommon the arguments common to all commands.
var (
	aiperfCommand = regexp.MustCompile(`(?s)aiperf profile .*?--artifact-dir report/(\w+)`)
	aiperfCommon  = regexp.MustCompile(`(?m)^common=.*\n`)
)

// The test is not parallel, because aiperf uses all processors.
func TestAIPerfMeasuresBerthWithoutAnError(t *testing.T) {
	blocks := readme(t)["aiperf"]
	if len(blocks) != 1 {
		t.Fatalf("the documents mark %d blocks as aiperf, want one", len(blocks))
	}
	python := venvProgram(virtualenv(t, "aiperf/requirements.txt"), "python")
	for _, kind := range aiperfCommand.FindAllStringSubmatch(blocks[0], -1) {
		check, known := reportChecks[kind[1]]
		if !known {
			t.Fatalf("no check for report/%s", kind[1])
		}
		t.Run(kind[1], func(t *testing.T) {
			l := newLoadTarget(t, kind[1] == "cancelled")
			r := l.runAIPerf(t, python, strings.ReplaceAll(aiperfCommon.FindString(blocks[0])+kind[0], "http://127.0.0.1:8000", l.url))
			check(t, l, r)
		})
	}
}

// loadTarget is berth with session affinity and two engines that record the sessions of requests.
type loadTarget struct {
	*berth
	engines  []*simulated.Engine
	mu       sync.Mutex
	sessions map[string]map[int]int // requests by session and engine
}

// newLoadTarget starts a load target. If slow is true, responses take much longer than clients
// wait.
func newLoadTarget(t *testing.T, slow bool) *loadTarget {
	l := &loadTarget{sessions: map[string]map[int]int{}}
	step := time.Millisecond
	if slow {
		step = 8 * time.Millisecond // responses take much longer than clients wait
	}
	config := loopbackConfig + "llm_configs:\n- model_loading_config: {model_id: demo}\n  deployment_config: {request_router_config: {request_router_class: ConsistentHashRouter}}\n  replicas:\n"
	for i := range 2 {
		e := simulated.New(simulated.Config{PrefillTokensPerSecond: 1e6, DecodeStep: step})
		t.Cleanup(e.Close)
		l.engines = append(l.engines, e)
		handler := e.Handler()
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				l.record(i, r.Header.Get("X-Session-ID"))
			}
			handler.ServeHTTP(w, r)
		}))
		t.Cleanup(s.Close)
		config += fmt.Sprintf("  - {url: %q}\n", s.URL)
	}
	l.berth = serve(t, config)
	return l
}

// record counts a request of a session at an engine.
func (l *loadTarget) record(engine int, session string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sessions[session] == nil {
		l.sessions[session] = map[int]int{}
	}
	l.sessions[session][engine]++
}

// stats returns the engines' total numbers of completed and aborted requests.
func (l *loadTarget) stats() (completed, aborted int64) {
	for _, e := range l.engines {
		now := e.Stats()
		completed, aborted = completed+now.Completed, aborted+now.Aborted
	}
	return completed, aborted
}

// report holds the checked values of an aiperf report.
type report struct {
	Complete   bool    `json:"is_complete"`
	Requests   average `json:"request_count"`
	Failed     average `json:"error_request_count"`
	Length     average `json:"output_sequence_length"`
	FirstToken average `json:"time_to_first_token"`
	NextToken  average `json:"inter_token_latency"`
	Errors     []struct {
		Details failure `json:"error_details"`
	} `json:"error_summary"`
}

type average struct{ Avg float64 }

type failure struct{ Type, Message string }

// runAIPerf runs a command of docs/testing.md and returns its report. A byte tokenizer is placed in
// the download cache.
func (l *loadTarget) runAIPerf(t *testing.T, python, command string) (r report) {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "e2e", "aiperf"), os.DirFS("aiperf")); err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(dir, "hf")
	byteTokenizer(t, filepath.Join(home, "hub", "models--berth--bytes"))
	c := startCommand(t, dir, "sh", "-c", "export HF_HOME='"+home+"' HF_HUB_OFFLINE=1 TOKENIZER=berth/bytes\n"+
		"aiperf() { exec '"+python+"' -m aiperf \"$@\" --ui-type none --no-gpu-telemetry --workers-max 2 --record-processor-service-count 1; }\n"+command)
	if status := c.waitExit(t); status != 0 {
		t.Fatalf("aiperf exited with status %d:\n%s", status, tail(c.stdout.String(), 8000))
	}
	found, err := filepath.Glob(filepath.Join(dir, "report", "*", "profile_export_aiperf.json"))
	if err != nil || len(found) != 1 {
		t.Fatalf("reports %v, error %v, want one report", found, err)
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	metrics, err := os.ReadFile(filepath.Join(filepath.Dir(found[0]), "server_metrics_export.json"))
	if err != nil || !strings.Contains(string(metrics), "berth_requests") {
		t.Errorf("aiperf did not read berth's metrics: %v", err)
	}
	return r
}

// byteTokenizer writes a tokenizer with one token per byte, in the layout of the download cache.
func byteTokenizer(t *testing.T, repository string) {
	t.Helper()
	vocabulary := map[string]int{}
	for b, shown := 0, rune(256); b < 256; b++ {
		symbol := rune(b)
		if b <= ' ' || b >= 0x7f && b <= 0xa0 || b == 0xad { // not printable
			symbol, shown = shown, shown+1
		}
		vocabulary[string(symbol)] = b
	}
	level := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
	tokenizer, err := json.Marshal(map[string]any{
		"version": "1.0", "added_tokens": []int{}, "pre_tokenizer": level, "decoder": level,
		"model": map[string]any{"type": "BPE", "vocab": vocabulary, "merges": []int{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	const revision = "0123456789012345678901234567890123456789"
	for name, text := range map[string]string{
		"refs/main": revision,
		"snapshots/" + revision + "/tokenizer.json":        string(tokenizer),
		"snapshots/" + revision + "/tokenizer_config.json": `{"tokenizer_class":"PreTrainedTokenizerFast"}`,
	} {
		file := filepath.Join(repository, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// reportChecks holds the check of each report, by the name of its directory.
var reportChecks = map[string]func(*testing.T, *loadTarget, report){
	"closed":  func(t *testing.T, l *loadTarget, r report) { l.checkAllCompleted(t, r, 60, 16) },
	"poisson": func(t *testing.T, l *loadTarget, r report) { l.checkAllCompleted(t, r, 60, 16) },
	"sessions": func(t *testing.T, l *loadTarget, r report) {
		l.checkAllCompleted(t, r, 32, 16)
		for session, engines := range l.sessions {
			if session == "" || len(engines) != 1 {
				t.Errorf("session %q went to %v", session, engines)
			}
		}
		if len(l.sessions) != 8 {
			t.Errorf("%d sessions, want 8", len(l.sessions))
		}
	},
	"trace": func(t *testing.T, l *loadTarget, r report) { l.checkAllCompleted(t, r, 30, 0) },
	"cancelled": func(t *testing.T, l *loadTarget, r report) {
		for _, e := range r.Errors {
			if e.Details.Type != "RequestCancellationError" {
				t.Errorf("aiperf reported %+v", e)
			}
		}
		eventually(t, "the engines have aborted all cancelled requests", func() bool {
			completed, aborted := l.stats()
			return float64(completed) == r.Requests.Avg && float64(aborted) == r.Failed.Avg
		})
		t.Logf("%v of 60 requests were cancelled", r.Failed.Avg)
		if !r.Complete || r.Requests.Avg+r.Failed.Avg != 60 || r.Failed.Avg == 0 {
			t.Errorf("%+v, want 60 requests, some of them cancelled", r)
		}
	},
}

// checkAllCompleted checks that aiperf and the engines report every request as completed.
func (l *loadTarget) checkAllCompleted(t *testing.T, r report, requests int, tokens float64) {
	t.Helper()
	if !r.Complete || len(r.Errors) > 0 || r.Requests.Avg != float64(requests) || r.Failed.Avg != 0 {
		t.Errorf("%+v, want %d requests and no error", r, requests)
	}
	if r.FirstToken.Avg <= 0 || r.NextToken.Avg <= 0 || tokens > 0 && r.Length.Avg != tokens {
		t.Errorf("%+v, want %v tokens each, and latencies above 0", r, tokens)
	}
	if completed, aborted := l.stats(); completed != int64(requests) || aborted != 0 {
		t.Errorf("the engines completed %d requests and aborted %d, want %d and 0", completed, aborted, requests)
	}
}
