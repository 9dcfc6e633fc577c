package e2e

import (
	"strings"
	"testing"

	"berth/llmserver/simulated"
)

// A process with little memory holds a quarter of it in request bodies.
func TestBodyBudgetFollowsTheMemoryLimit(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "64MiB")
	b := serve(t, demo("", engines(t, 1, simulated.Config{})...))
	if limit := b.sum(t, "berth_buffered_bytes_limit"); limit != 16<<20 {
		t.Errorf("the limit is %v", limit)
	}
	got := chat(t.Context(), newClient(t, false), b.url, ask("demo", strings.Repeat("x", 17<<20), 1, false))
	if got.status != 503 || !strings.Contains(string(got.body), "request_memory_exhausted") {
		t.Errorf("a body beyond it got %v", got)
	}
	if !b.log.has("memory leaves less for request bodies") {
		t.Error("the log does not tell")
	}
}
