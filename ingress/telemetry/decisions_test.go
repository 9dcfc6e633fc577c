package telemetry

import (
	"fmt"
	"math"
	"net/http"
	"sync"
	"testing"
	"time"

	"berth/llmserver"
	"berth/routers"
)

// newRouter returns a router of one replica of that name.
func newRouter(t *testing.T, replica string, hooks routers.Hooks) *routers.Router {
	t.Helper()
	build, err := routers.Lookup("", nil)
	if err != nil {
		t.Fatal(err)
	}
	r := routers.New([]*llmserver.Replica{newReplica(replica)}, build, routers.Limits{MaxQueued: 1, QueueTimeout: time.Second}, hooks)
	t.Cleanup(r.Close)
	return r
}

func newReplica(id string) *llmserver.Replica {
	return llmserver.NewReplica(llmserver.Endpoint{ID: id, Limit: 9}, new(emptyBackend))
}

// emptyBackend responds without a body.
type emptyBackend struct{ llmserver.HTTP }

var noContent = &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}

func (*emptyBackend) Do(*http.Request, llmserver.Token) (*http.Response, llmserver.Report, error) {
	return noContent, llmserver.Report{}, nil
}

// Many concurrent decisions overwrite the oldest ones and are never mixed up.
func TestDecisionsAreNotMixedUpByConcurrentWriters(t *testing.T) {
	ds := new(decisionRing)
	var writers sync.WaitGroup
	for i := range 4 {
		id := fmt.Sprint("r", i)
		r := newRouter(t, id, routers.Hooks{Decided: func(d routers.Decision) { ds.record(d, id) }})
		writers.Go(func() {
			for range 500 {
				sel, err := r.Choose(t.Context(), &routers.Payload{RequestID: id, Model: id})
				if err != nil {
					t.Error(err)
					return
				}
				sel.Release()
				for _, d := range ds.newest(10) {
					if d.Replica != d.RequestID || d.Policy != d.Model || d.Model != d.Replica || d.Rank != 1 {
						t.Errorf("a decision is %+v", d)
					}
				}
			}
		})
	}
	writers.Wait()
	if got := ds.newest(10_000); len(got) != maxDecisions {
		t.Errorf("%d decisions are kept; want %d", len(got), maxDecisions)
	}
}

func TestDecisionsExplanationsHaveABoundedCost(t *testing.T) {
	ds, now := new(decisionRing), time.Now()
	explained := 0
	for range 100_000 { // of 40 replicas each, in ten seconds
		if now = now.Add(100 * time.Microsecond); ds.spendExplanation(now, 40) {
			explained++
		}
	}
	if most := int((10*time.Second + explainBurst) / (40 * explainInterval)); explained > most || explained < most-1 {
		t.Errorf("%d decisions were explained; want %d", explained, most)
	}
	if ds = new(decisionRing); !ds.spendExplanation(now, 1) {
		t.Error("the first decision is not explained")
	}
}

// BenchmarkDecisions measures a choice with and without its record.
func BenchmarkDecisions(b *testing.B) {
	for _, c := range []struct {
		name  string
		hooks func(*decisionRing) routers.Hooks
	}{
		{"none", func(*decisionRing) routers.Hooks { return routers.Hooks{} }},
		{"recorded", func(ds *decisionRing) routers.Hooks {
			ds.used.Store(math.MaxInt64 - 1<<40) // no explanations
			return routers.Hooks{Decided: func(d routers.Decision) { ds.record(d, "") }}
		}},
		{"explained", func(ds *decisionRing) routers.Hooks {
			return routers.Hooks{Decided: func(d routers.Decision) { ds.used.Store(0); ds.record(d, "") }}
		}},
	} {
		for _, class := range []string{"RoundRobinRouter", "PrefixCacheAffinityRouter"} {
			b.Run(class+"/"+c.name, func(b *testing.B) {
				b.ReportAllocs()
				build, err := routers.Lookup(class, nil)
				if err != nil {
					b.Fatal(err)
				}
				var replicas []*llmserver.Replica
				for i := range 8 {
					replicas = append(replicas, newReplica(fmt.Sprint(i)))
				}
				r := routers.New(replicas, build, routers.Limits{MaxQueued: 1, QueueTimeout: time.Second}, c.hooks(new(decisionRing)))
				p := &routers.Payload{Blocks: make([]uint64, 64)}
				start := cpu(b)
				for b.Loop() {
					sel, err := r.Choose(b.Context(), p)
					if err != nil {
						b.Fatal(err)
					}
					if _, err := sel.Dispatch(&http.Request{}); err != nil {
						b.Fatal(err)
					}
					sel.Release()
				}
				b.ReportMetric(float64(cpu(b)-start)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}
