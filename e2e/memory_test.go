package e2e

import (
	"strings"
	"testing"

	"berth/llmserver/simulated"
)

// The budget for request bodies is a quarter of the memory limit.
func TestBodyBudgetFollowsTheMemoryLimit(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "64MiB")
	b := serve(t, demoConfig("", startEngines(t, 1, simulated.Config{})...))
	if limit := b.sumMetric(t, "berth_buffered_bytes_limit"); limit != 16<<20 {
		t.Errorf("the budget is %v bytes, want 16 MiB", limit)
	}
	got := chat(t.Context(), newClient(t, false), b.url, chatBody("demo", strings.Repeat("x", 17<<20), 1, false))
	if got.status != 503 || !strings.Contains(string(got.body), "request_memory_exhausted") {
		t.Errorf("a body above the budget got %v", got)
	}
	if !b.stderr.contains("memory leaves less for request bodies") {
		t.Error("the reduced budget is not logged")
	}
}
