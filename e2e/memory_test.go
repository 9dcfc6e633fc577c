package e2e

import (
	"strings"
	"testing"

	"berth/llmserver/simulated"
)

// A process with little memory holds a quarter of it in request bodies.
func TestBodyBudgetFollowsTheMemoryLimit(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "64MiB")
	b := serve(t, demoConfig("", startEngines(t, 1, simulated.Config{})...))
	if limit := b.sumMetric(t, "berth_buffered_bytes_limit"); limit != 16<<20 {
		t.Errorf("the limit is %v", limit)
	}
	got := chat(t.Context(), newClient(t, false), b.url, chatBody("demo", strings.Repeat("x", 17<<20), 1, false))
	if got.status != 503 || !strings.Contains(string(got.body), "too_many_bytes_held") {
		t.Errorf("a body beyond it got %v", got)
	}
	if !b.stderr.contains("memory leaves less for request bodies") {
		t.Error("the log does not tell")
	}
}
