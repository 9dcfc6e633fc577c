package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A decision log can be replayed, with the same requests and the same shared prefixes.
func TestDecisionLogCanBeReplayed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "decisions.jsonl")
	b := serve(t, loopbackConfig+fmt.Sprintf(`
decision_log: {path: %q}
llm_configs:
  - model_loading_config: {model_id: demo}
    deployment_config:
      num_replicas: 3
      request_router_config: {request_router_class: PrefixCacheAffinityRouter}
    simulated: {}
`, path))
	client := newClient(t, false)
	const conversations, turns = 4, 5
	text := strings.Repeat("text that was sent before and is sent again. ", 60)
	for turn := range turns {
		for i := range conversations {
			messages := strings.Repeat(fmt.Sprintf(`{"role":"user","content":"%d %s"},`, i, text), turn+1)
			body := fmt.Sprintf(`{"model":"demo","max_tokens":2,"prompt_cache_key":"c%d","messages":[%s]}`, i, messages[:len(messages)-1])
			if a := chat(t.Context(), client, b.url, body); !a.isComplete() {
				t.Fatal(a)
			}
		}
	}
	b.signal(t, syscall.SIGTERM)
	if status := b.waitExit(t); status != 0 {
		t.Fatalf("berth exited with status %d", status)
	}
	if log, err := os.ReadFile(path); err != nil || strings.Contains(string(log), "sent again") {
		t.Fatalf("error %v, or the log contains prompts", err)
	}
	status, out, log := runToExit(t, "replay", "--trace", path, "--replicas", "3", "--policy", "ConsistentHashRouter", "--format", "json")
	var results []struct {
		Requests, Refused int
		Ceiling           float64
		HitRate           float64 `json:"hit_rate"`
		Moved             int     `json:"sessions_moved"`
	}
	if err := json.Unmarshal([]byte(out), &results); err != nil || status != 0 || len(results) != 1 {
		t.Fatalf("status %d, %v, %s%s", status, err, out, log)
	}
	// Every turn finds the blocks of the previous turns: 0+1+2+3+4 of 1+2+3+4+5, except incomplete
	// blocks.
	if r := results[0]; r.Requests != conversations*turns || r.Refused != 0 || r.Moved != 0 || r.Ceiling < 0.5 || r.Ceiling > 0.68 || r.HitRate < 0.9*r.Ceiling {
		t.Errorf("replay result %+v", r)
	}
}
