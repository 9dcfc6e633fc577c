package ingress

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/config"
	"berth/llmserver"
	"berth/routers"
)

func (f *front) lastDecisions(query string) []shownDecision {
	f.t.Helper()
	var got struct{ Decisions []shownDecision }
	r := f.admin("/internal/decisions" + query)
	if err := json.Unmarshal([]byte(r.body), &got); err != nil || r.StatusCode != 200 {
		f.t.Fatalf("%d %v in %s", r.StatusCode, err, r.body)
	}
	return got.Decisions
}

// inWords says what a decision was, without what differs from run to run.
func (d shownDecision) inWords() string {
	match := func(m *float64) string {
		if m == nil {
			return ""
		}
		return fmt.Sprintf("/%.2f", *m)
	}
	s := fmt.Sprintf("%s: %s by %s of %s, rank %d%s:", d.RequestID, d.Replica, d.Policy, d.Model, d.Rank, match(d.Match))
	for _, c := range d.Candidates {
		s += fmt.Sprintf(" %s/%d/%d%s/%s", c.Replica, c.Rank, c.Load, match(c.Match), c.State)
	}
	return strings.TrimSpace(s + "; " + d.Preferred + " " + d.Lost)
}

func TestOperatorsSeeTheLastDecisions(t *testing.T) {
	g := gated(t)
	m := narrow(modelOn("m", g.url, g.url+"/b"))
	m.Router = config.Router{Class: "PrefixCacheAffinityRouter"}
	f := serve(t, m)
	if r := f.admin("/internal/decisions"); r.body != `{"decisions":[]}`+"\n" {
		t.Errorf("before the first request there is %s", r.body)
	}
	ask := func(id string) <-chan reply {
		return f.background(func() reply {
			text := strings.Repeat("a prompt of several blocks ", 100)
			return f.post("/v1/completions", `{"model":"m:lora","prompt":"`+text+`"}`, "X-Request-Id", id)
		})
	}
	first := ask("1")
	receive(t, g.arrived)
	second := ask("2")
	receive(t, g.arrived)
	third := ask("3")
	f.waiting("m", 1)
	g.open <- struct{}{}
	receive(t, g.arrived)
	g.open <- struct{}{}
	g.open <- struct{}{}
	for _, done := range []<-chan reply{first, second, third} {
		receive(t, done)
	}
	got := f.lastDecisions("")
	if len(got) != 3 {
		t.Fatalf("there are %d decisions", len(got))
	}
	home := got[2].Replica
	other := map[string]string{"a": "b", "b": "a"}[home]
	for i, want := range []string{
		"", // which replica came free first is open
		fmt.Sprintf("2: %s by PrefixCacheAffinityRouter of m, rank 2/0.00: %s/1/1/1.00/full %s/2/0/0.00/chosen; %s full", other, home, other, home),
		fmt.Sprintf("1: %s by PrefixCacheAffinityRouter of m, rank 1/0.00: %s/1/0/0.00/chosen %s/2/0/0.00/free;", home, home, other),
	} {
		d := got[i]
		if d.Adapter != "lora" || time.Since(d.Time) > time.Minute || (d.WaitedMS > 0) != (i == 0) {
			t.Errorf("of decision %s: adapter %s, at %v, waited %v ms", d.RequestID, d.Adapter, d.Time, d.WaitedMS)
		}
		if want != "" && d.inWords() != want {
			t.Errorf("shows %s\n want %s", d.inWords(), want)
		}
	}
	if d := got[0]; d.RequestID != "3" || d.Match == nil || *d.Match != 1 || len(d.Candidates) != 2 {
		t.Errorf("the one that waited is shown as %s", d.inWords())
	}
	if one := f.lastDecisions("?n=1"); len(one) != 1 || one[0].RequestID != "3" {
		t.Errorf("the last one is %v", one)
	}
	for _, bad := range []string{"0", "-1", "x", "1.5"} {
		if r := f.admin("/internal/decisions?n=" + bad); r.StatusCode != 400 {
			t.Errorf("for n=%s: %d %s", bad, r.StatusCode, r.body)
		}
	}
	if n := len(f.lastDecisions("?n=100000")); n != 3 {
		t.Errorf("%d are shown of three", n)
	}
	for series, want := range map[string]float64{
		`berth_route_rank_total{model="m",rank="2"}`:          1,
		`berth_route_rank_total{model="m",rank="4+"}`:         0,
		`berth_prefix_match_ratio_count{model="m"}`:           3,
		`berth_prefix_match_ratio_bucket{model="m",le="0"}`:   2,
		`berth_prefix_match_ratio_bucket{model="m",le="0.5"}`: 2,
		`berth_prefix_index_evictions_total{model="m"}`:       0,
	} {
		if got := f.metric(series); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
	if bytes := f.metric(`berth_prefix_index_bytes{model="m"}`); bytes <= 0 {
		t.Errorf("the index takes %v bytes", bytes)
	}
}

func TestTheRingIsInTheMetricsOfModelsThatHaveOne(t *testing.T) {
	m := modelOn("m", refusing(1), refusing(2))
	m.Router.Class = "ConsistentHashRouter"
	f := serve(t, m, modelOn("n", refusing(3)))
	if n := f.metric(`berth_ring_rebuilds_total{model="m"}`); n != 0 {
		t.Errorf("it was rebuilt %v times", n)
	}
	m.Replicas = m.Replicas[:1]
	f.mustApply(m)
	if n := f.metric(`berth_ring_rebuilds_total{model="m"}`); n != 1 {
		t.Errorf("it was rebuilt %v times, want once", n)
	}
	for _, series := range []string{`berth_ring_rebuilds_total{model="n"}`, `berth_prefix_index_bytes{model="m"}`, `berth_prefix_match_ratio_count{model="n"}`} {
		if _, ok := f.series(series); ok {
			t.Errorf("there is %s", series)
		}
	}
}

// Many decisions at once overwrite the oldest and are never mixed up.
func TestTheLastDecisionsAreWholeWhoeverWritesThem(t *testing.T) {
	ds := new(decisions)
	router := func(id string) *routers.Router {
		build, err := routers.Lookup("", nil)
		if err != nil {
			t.Fatal(err)
		}
		return routers.New(replicasCalled(id), build, routers.Limits{MaxQueued: 1, QueueTimeout: time.Second},
			routers.Hooks{Decided: func(d routers.Decision) { ds.note(d, id) }})
	}
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			id := fmt.Sprint("r", i)
			r := router(id)
			defer r.Close()
			for range 500 {
				sel, err := r.Choose(t.Context(), &routers.Payload{RequestID: id, Model: id})
				if err != nil {
					t.Error(err)
					return
				}
				sel.Release()
				for _, d := range ds.last(10) {
					if d.Replica != d.RequestID || d.Policy != d.Model || d.Model != d.Replica || d.Rank != 1 {
						t.Errorf("shows %+v", d)
					}
				}
			}
		})
	}
	all.Wait()
	if got := ds.last(10_000); len(got) != keptDecisions {
		t.Errorf("%d are kept", len(got))
	}
}

func TestExplanationsTakeABoundedPartOfTheTime(t *testing.T) {
	ds, now := new(decisions), time.Now()
	explained := 0
	for range 100_000 { // of 40 replicas each, in ten seconds
		if now = now.Add(100 * time.Microsecond); ds.mayExplain(now, 40) {
			explained++
		}
	}
	if most := int((10*time.Second + explainAhead) / (40 * explainEvery)); explained > most || explained < most-1 {
		t.Errorf("%d were explained, want %d", explained, most)
	}
	if ds = new(decisions); !ds.mayExplain(now, 1) {
		t.Error("the first one is not explained")
	}
}

// replicasCalled is one replica by that name, which has nothing to say.
func replicasCalled(id string) []*llmserver.Replica {
	return []*llmserver.Replica{llmserver.NewReplica(llmserver.Endpoint{ID: id, Limit: 9}, new(silentBackend))}
}

// silentBackend answers without a word.
type silentBackend struct{ llmserver.HTTP }

var noWord = &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}

func (*silentBackend) Do(*http.Request, llmserver.Token) (*http.Response, llmserver.Report, error) {
	return noWord, llmserver.Report{}, nil
}

func BenchmarkChooseAndNote(b *testing.B) {
	for _, c := range []struct {
		name  string
		hooks func(*decisions) routers.Hooks
	}{
		{"unseen", func(*decisions) routers.Hooks { return routers.Hooks{} }},
		{"noted", func(ds *decisions) routers.Hooks {
			ds.used.Store(math.MaxInt64 - 1<<40) // no explanations
			return routers.Hooks{Decided: func(d routers.Decision) { ds.note(d, "") }}
		}},
		{"explained", func(ds *decisions) routers.Hooks {
			return routers.Hooks{Decided: func(d routers.Decision) { ds.used.Store(0); ds.note(d, "") }}
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
					replicas = append(replicas, replicasCalled(fmt.Sprint(i))...)
				}
				r := routers.New(replicas, build, routers.Limits{MaxQueued: 1, QueueTimeout: time.Second}, c.hooks(new(decisions)))
				p := &routers.Payload{Blocks: make([]uint64, 64)}
				began := cpu(b)
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
				b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}
