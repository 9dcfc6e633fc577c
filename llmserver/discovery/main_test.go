package discovery

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"berth/llmserver"
)

func TestMain(m *testing.M) {
	// One of client-go's handlers sleeps until a time after the start of the process, which in the
	// time of a bubble is decades away.
	utilruntime.ErrorHandlers = nil
	goleak.VerifyTestMain(m)
}

// run is a running source with the sets that it has published.
type run struct {
	t      *testing.T
	source Source
	stop   func() // waits for the end of Run

	mu   sync.Mutex
	sets []string
	log  bytes.Buffer
}

// newRun starts the source that create makes. In a bubble it must be stopped before the end.
func newRun(t *testing.T, create func(log *slog.Logger) Source) *run {
	r := &run{t: t}
	r.source = create(slog.New(slog.NewTextHandler(r, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.source.Run(ctx, func(set []llmserver.Endpoint) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.sets = append(r.sets, describe(set))
		})
	}()
	r.stop = func() { cancel(); <-ended }
	return r
}

// Write implements io.Writer, for the log.
func (r *run) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(p)
}

// logged returns the log since the last call.
func (r *run) logged() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.log.Reset()
	return r.log.String()
}

// want checks the last set once everything in the bubble is blocked; "none" means that none was
// published since the last call.
func (r *run) want(set string) {
	r.t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	got := "none"
	if len(r.sets) > 0 {
		got = r.sets[len(r.sets)-1]
	}
	if got != set {
		r.t.Errorf("published %q; want %q", r.sets, set)
	}
	r.sets = nil
}

// describe returns endpoints as ID=URL/Instance(limit), with a - for one that is draining.
func describe(set []llmserver.Endpoint) string {
	var all []string
	for _, e := range set {
		text := cmp.Or(map[bool]string{true: "-"}[e.Draining]) + e.ID + "=" + strings.TrimPrefix(e.URL, "http://")
		if e.Instance != "" {
			text += "/" + e.Instance
		}
		if e.Limit != 0 {
			text += fmt.Sprintf("(%d)", e.Limit)
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}
