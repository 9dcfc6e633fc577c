package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"berth/llmserver/simulated"
)

// The test is not parallel, because the processes of other tests would inherit the variable.
func TestTelemetryIsCompleteWhenTheProcessEnds(t *testing.T) {
	var spans atomic.Int64
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		spans.Add(int64(strings.Count(string(body), "\x2a\x07attempt"))) // field 5 of a span is its name
	}))
	t.Cleanup(collector.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	path := filepath.Join(t.TempDir(), "access.jsonl")
	b := serve(t, "access_log: "+path+demoConfig("", startEngines(t, 2, simulated.Config{})...))

	const requests = 60
	client := newClient(t, false)
	for i := range requests {
		if a := chat(t.Context(), client, b.url, chatBody("demo", "This prompt is confidential.", 3, i%2 == 0)); !a.isComplete() {
			t.Fatal(a)
		}
	}
	last := openStream(t, t.Context(), client, b.url, chatBody("demo", "This prompt is confidential.", 500, true))
	b.signal(t, syscall.SIGTERM)
	if a := readResponse(last); !a.isComplete() {
		t.Error(a)
	}
	if status := b.waitExit(t); status != 0 {
		t.Errorf("berth exited with status %d", status)
	}

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	finished, tokens := 0, 0
	for line := range strings.Lines(string(text)) {
		var request struct {
			Outcome          string
			Model            string
			CompletionTokens int `json:"completion_tokens"`
		}
		if err := json.Unmarshal([]byte(line), &request); err != nil {
			t.Errorf("%v in %s", err, line)
		}
		if request.Outcome == "finished" && request.Model == "demo" {
			finished++
			tokens += request.CompletionTokens
		}
	}
	if finished != requests+1 || strings.Contains(string(text), "confidential") {
		t.Errorf("%d requests in the access log, want %d and no prompts:\n%s", finished, requests+1, tail(string(text), 2000))
	}
	if tokens < requests/2*3 { // only buffered responses report usage without include_usage
		t.Errorf("%d tokens in the access log", tokens)
	}
	if n := spans.Load(); n != requests+1 {
		t.Errorf("the collector received %d attempts, want %d", n, requests+1)
	}
}
