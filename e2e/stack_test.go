package e2e

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

// buildWithoutRace builds berth like a release, even if this test runs with the race detector.
var buildWithoutRace = sync.OnceValues(func() (binary string, err error) {
	binary = filepath.Join(binaryDir, "berth-plain")
	cmd := exec.Command("go", "build", "-o", binary, "berth/cmd/berth")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	return binary, cmd.Run()
})

// Most memory of a waiting stream is its goroutine stack. Go doubles a stack that is too small and
// halves it during garbage collection if less than a quarter is in use. A few additional kilobytes
// of frames anywhere in the path of a request therefore cost 8 KiB per stream.
func TestWaitingStreamHasAStackOf8KiB(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("stack frames differ on this platform")
	}
	const streams = 200
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(upstream.Close)
	b := serveBinary(t, buildWithoutRace, loopbackConfig+"llm_configs:\n- {model_loading_config: {model_id: demo}, deployment_config: {max_ongoing_requests: 300, request_router_config: {request_router_class: PrefixCacheAffinityRouter}}, "+
		"replicas: [{url: \""+upstream.URL+"\"}]}\n")
	stacks := func() float64 {
		for range 4 { // each collection halves a stack once
			b.getPage(t, b.admin+"/debug/pprof/heap?gc=1")
		}
		return b.sumMetric(t, "go_memstats_stack_inuse_bytes")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	client := newClient(t, false)
	openStream(t, ctx, client, b.url, chatBody("demo", "Hello", 1, true))
	before := stacks()
	for range streams {
		openStream(t, ctx, client, b.url, chatBody("demo", "Hello", 1, true))
	}
	if each := (stacks() - before) / streams; each > 12<<10 {
		t.Errorf("stack memory per stream is %.1f KiB, want 8", each/1024)
	}
}
