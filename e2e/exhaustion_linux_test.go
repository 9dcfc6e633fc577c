package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/llmserver/simulated"
)

// serveWithDescriptorLimit starts berth with a hard limit of file descriptors.
func serveWithDescriptorLimit(t *testing.T, descriptors int, config string) *berth {
	t.Helper()
	binary, err := buildBerth()
	if err != nil {
		t.Fatal(err)
	}
	shell, err := exec.LookPath("sh")
	if err != nil {
		skipOrFail(t, "sh is required: %v", err)
	}
	file := filepath.Join(t.TempDir(), "berth.yaml")
	replaceFile(t, file, config)
	b := waitListening(t, startCommand(t, "", shell, "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" serve --config "$1"`, descriptors), binary, file))
	t.Cleanup(func() { b.checkIdleAndStop(t) })
	eventually(t, "berth is ready", func() bool { return b.getPage(t, b.url+"/readyz").status == http.StatusOK })
	return b
}

// A burst of clients exceeds berth's file descriptors while streams are running.
func TestExhaustionBlamesNoReplicaAndCutsNoStream(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		http string // value of the http key
		code string // error code of refusals
	}{
		"derived connection limit":                 {`{address: "127.0.0.1:0"}`, "too_many_connections"},
		"no descriptor for an upstream connection": {`{address: "127.0.0.1:0", max_connections: 1000}`, "server_exhausted"},
	} {
		t.Run(name, func(t *testing.T) { testExhaustion(t, row.http, row.code) })
	}
}

// testExhaustion sends a burst of requests that exceeds the descriptors and checks that excess
// requests get the given error code, that running streams complete, and that no replica is marked
// down.
func testExhaustion(t *testing.T, settings, code string) {
	const descriptors, streams, burst = 96, 12, 150
	fleet := startEngines(t, 2, simulated.Config{DecodeStep: 20 * time.Millisecond})
	config := strings.Replace(demoConfig("health_check_period_s: 0.05", fleet...), `http: {address: "127.0.0.1:0"}`, "http: "+settings, 1)
	b := serveWithDescriptorLimit(t, descriptors, config)
	var streaming []<-chan response
	for range streams {
		resp := openStream(t, context.WithoutCancel(t.Context()), newClient(t, false), b.url, chatBody("demo", "Count.", 400, true))
		rest := make(chan response, 1)
		go func() { rest <- readResponse(resp) }()
		streaming = append(streaming, rest)
	}
	var served, refused int
	var mu sync.Mutex
	var running sync.WaitGroup
	for range burst {
		running.Go(func() {
			client := newClient(t, false)
			client.Transport.(*http.Transport).DisableKeepAlives = true
			got := chat(t.Context(), client, b.url, chatBody("demo", "Hello", 20, true))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case got.isComplete():
				served++
			case got.status == 503 && bytes.Contains(got.body, []byte(code)) && got.header.Get("Retry-After") != "":
				refused++
			default:
				t.Errorf("a client of the burst got %v", got)
			}
		})
	}
	running.Wait()
	if served == 0 || refused == 0 {
		t.Errorf("%d were served and %d refused", served, refused)
	}
	for _, rest := range streaming {
		if got := waitResponse(t, rest); !bytes.HasSuffix(got.body, []byte("data: [DONE]\n\n")) || got.err != nil {
			t.Errorf("a stream started before the burst got %v", got)
		}
	}
	if up := b.sumMetric(t, "berth_replica_up"); up != 2 {
		t.Errorf("%v of 2 replicas are up", up)
	}
	if got := chat(t.Context(), newClient(t, false), b.url, chatBody("demo", "Hello", 1, true)); !got.isComplete() {
		t.Errorf("a request after the burst got %v", got)
	}
	if b.sumMetric(t, "berth_connections_refused_total")+b.sumMetric(t, "berth_exhausted_total") == 0 {
		t.Error("no refused connection or exhaustion was counted")
	}
	if log := b.stderr.String(); !strings.Contains(log, "level=WARN") || strings.Count(log, "\n") > 20 {
		t.Errorf("the log has %d lines", strings.Count(log, "\n"))
	}
}
