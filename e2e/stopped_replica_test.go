package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth/llmserver/simulated"
)

// A stopped process accepts connections and sends no responses, not even to health checks. Under
// load and with default settings, the replica gets no more requests after ten seconds, and gets
// requests again after it resumes.
func TestStoppedReplicaIsOutOfUseWithinTenSecondsUnderLoad(t *testing.T) {
	t.Parallel()
	var replicas []*agentProcess
	var list []string
	for _, engine := range startEngines(t, 3, simulated.Config{}) {
		a := startAgent(t, engine.URL(), 256)
		replicas, list = append(replicas, a), append(list, fmt.Sprintf("{url: %q}", a.url))
	}
	b := serve(t, loopbackConfig+"llm_configs:\n- model_loading_config: {model_id: demo}\n  replicas: ["+strings.Join(list, ", ")+"]\n")
	state := func(want string) bool {
		return b.sumMetric(t, "berth_replica_state", fmt.Sprintf("replica=%q", replicas[0].address()), fmt.Sprintf("state=%q", want)) == 1
	}
	eventually(t, "the replica serves", func() bool { return state("serving") })

	load, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop()
	client := newClient(t, false)
	clients.Go(func() { // open loop: independent of responses
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-load.Done():
				return
			case <-tick.C:
				clients.Go(func() {
					ctx, cancel := context.WithTimeout(load, 20*time.Second)
					defer cancel()
					chat(ctx, client, b.url, chatBody("demo", "Hello", 4, true))
				})
			}
		}
	})
	replicas[0].signal(t, syscall.SIGSTOP)
	defer replicas[0].signal(t, syscall.SIGCONT)
	stopped := time.Now()
	eventually(t, "the stopped replica is down or ejected", func() bool { return state("down") || state("ejected") })
	if took := time.Since(stopped); took > 15*time.Second {
		t.Errorf("the stopped replica was in use for %v, want 10s plus a tolerance for a busy machine", took)
	}
	for range 30 {
		if got := chat(t.Context(), client, b.url, chatBody("demo", "Hello", 4, true)); !got.isComplete() {
			t.Fatalf("a request after the ejection: %v", got)
		}
	}
	replicas[0].signal(t, syscall.SIGCONT)
	eventually(t, "the resumed replica serves again", func() bool { return state("serving") })
}
