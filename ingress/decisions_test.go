package ingress

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"berth/config"
	"berth/llmserver"
)

// decisionJSON is a decision as operators read it.
type decisionJSON struct {
	RequestID  string    `json:"request_id"`
	Time       time.Time `json:"time"`
	Model      string    `json:"model"`
	Adapter    string    `json:"adapter"`
	Policy     string    `json:"policy"`
	Replica    string    `json:"replica"`
	Rank       int       `json:"rank"`
	Match      *float64  `json:"match"`
	WaitedMS   float64   `json:"waited_ms"`
	Preferred  string    `json:"preferred"`
	Lost       string    `json:"lost"`
	Candidates []struct {
		Replica string   `json:"replica"`
		Rank    int      `json:"rank"`
		Load    int      `json:"load"`
		Match   *float64 `json:"match"`
		State   string   `json:"state"`
	} `json:"candidates"`
}

// recentDecisions lists decisions on the admin listener.
func (f *front) recentDecisions(query string) []decisionJSON {
	f.t.Helper()
	var got struct{ Decisions []decisionJSON }
	r := f.admin("/internal/decisions" + query)
	if err := json.Unmarshal([]byte(r.body), &got); err != nil || r.StatusCode != 200 {
		f.t.Fatalf("%d %v in %s", r.StatusCode, err, r.body)
	}
	return got.Decisions
}

// summary returns the fields of a decision that are the same in every run.
func (d decisionJSON) summary() string {
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

func TestDecisionsAreListedWithTheirCandidates(t *testing.T) {
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
	got := f.recentDecisions("")
	if len(got) != 3 {
		t.Fatalf("there are %d decisions", len(got))
	}
	home := got[2].Replica
	other := map[string]string{"a": "b", "b": "a"}[home]
	for i, want := range []string{
		"", // either replica may have had the first free slot
		fmt.Sprintf("2: %s by PrefixCacheAffinityRouter of m, rank 2/0.00: %s/1/1/1.00/full %s/2/0/0.00/chosen; %s full", other, home, other, home),
		fmt.Sprintf("1: %s by PrefixCacheAffinityRouter of m, rank 1/0.00: %s/1/0/0.00/chosen %s/2/0/0.00/free;", home, home, other),
	} {
		d := got[i]
		if d.Adapter != "lora" || time.Since(d.Time) > time.Minute || (d.WaitedMS > 0) != (i == 0) {
			t.Errorf("of decision %s: adapter %s, at %v, waited %v ms", d.RequestID, d.Adapter, d.Time, d.WaitedMS)
		}
		if want != "" && d.summary() != want {
			t.Errorf("the decision is %s\n want %s", d.summary(), want)
		}
	}
	if d := got[0]; d.RequestID != "3" || d.Match == nil || *d.Match != 1 || len(d.Candidates) != 2 {
		t.Errorf("the decision of the queued request is %s", d.summary())
	}
	if one := f.recentDecisions("?n=1"); len(one) != 1 || one[0].RequestID != "3" {
		t.Errorf("the last one is %v", one)
	}
	for _, bad := range []string{"0", "-1", "x", "1.5"} {
		if r := f.admin("/internal/decisions?n=" + bad); r.StatusCode != 400 {
			t.Errorf("for n=%s: %d %s", bad, r.StatusCode, r.body)
		}
	}
	if n := len(f.recentDecisions("?n=100000")); n != 3 {
		t.Errorf("%d decisions are listed of three", n)
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
		t.Errorf("the index has %v bytes", bytes)
	}
}

func TestMetricsOfTheHashRing(t *testing.T) {
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

// replicasCalled returns one replica of that name, which responds without a body.
func replicasCalled(id string) []*llmserver.Replica {
	return []*llmserver.Replica{llmserver.NewReplica(llmserver.Endpoint{ID: id, Limit: 9}, new(silentBackend))}
}

// silentBackend responds without a body.
type silentBackend struct{ llmserver.HTTP }

var noWord = &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}

func (*silentBackend) Do(*http.Request, llmserver.Token) (*http.Response, llmserver.Report, error) {
	return noWord, llmserver.Report{}, nil
}
