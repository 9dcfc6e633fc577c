package ingress

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"berth/config"
)

// The same long prompt from many clients at once is computed by few replicas.
func TestHerdOfOnePromptUsesFewReplicas(t *testing.T) {
	const herd, fleet = 64, 8
	var arrived atomic.Int32
	all := make(chan struct{})
	var asked [fleet]atomic.Bool
	m := modelOn("m")
	m.Router.Class = "PrefixCacheAffinityRouter"
	for i := range fleet {
		m.Replicas = append(m.Replicas, config.Replica{ID: fmt.Sprint(i), MaxOngoingRequests: herd, URL: upstream(t, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			asked[i].Store(true)
			if arrived.Add(1) == herd {
				close(all)
			}
			select {
			case <-all:
				ok(w, r)
			case <-r.Context().Done():
			}
		})})
	}
	f := serve(t, m)
	body := `{"model":"m","prompt":"` + strings.Repeat("sixteen bytes.. ", 4096*4/16) + `"}`
	start := make(chan struct{})
	var clients sync.WaitGroup
	for range herd {
		clients.Go(func() {
			<-start
			if r := f.post("/v1/completions", body); r.body != "ok" {
				t.Errorf("got %d %v %s", r.StatusCode, r.err, r.body)
			}
		})
	}
	close(start)
	clients.Wait()
	computing := 0
	for i := range asked {
		if asked[i].Load() {
			computing++
		}
	}
	if computing > 2 {
		t.Errorf("%d replicas compute it, want at most 2", computing)
	}
}
