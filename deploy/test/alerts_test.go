package main

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	prom "github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// healthy is an hour of a fleet with nothing wrong, a sample a minute, in the notation of
// Prometheus' own rule tests: a first value, then an increment and how often it is added. Waiting
// and draining for a while are no fault.
const healthy = `
berth_replica_up{job="berth", instance="x", model="m", replica="a"} 1x60
berth_replica_up{job="berth", instance="x", model="m", replica="b"} 1x60
berth_replica_state{job="berth", instance="x", model="m", replica="a", state="serving"} 1x60
berth_replica_state{job="berth", instance="x", model="m", replica="a", state="down"} 0x60
berth_replica_state{job="berth", instance="x", model="m", replica="a", state="half_open"} 0x60
berth_replica_state{job="berth", instance="x", model="m", replica="a", state="ejected"} 0x60
berth_replica_state{job="berth", instance="x", model="m", replica="b", state="draining"} 1x60
berth_replica_ejections_total{job="berth", instance="x", model="m", replica="a"} 3x60
berth_slots{job="berth", instance="x", model="m", replica="a", state="running"} 5x60
berth_slots_capacity{job="berth", instance="x", model="m", replica="a"} 10x60
berth_queue_length{job="berth", instance="x", model="m"} 4x58 0 9
berth_requests_total{job="berth", instance="x", model="m", route="/chat/completions", status="200"} 0+600x60
berth_requests_total{job="berth", instance="x", model="m", route="/chat/completions", status="499"} 0+600x60
berth_requests_total{job="berth", instance="x", model="m", route="/chat/completions", status="503"} 0+1x60
berth_requests_total{job="berth", instance="x", model="m", route="/chat/completions", status="429"} 0+1x60
berth_requests_total{job="berth", instance="x", model="", route="/readyz", status="503"} 0+900x60
berth_upstream_errors_total{job="berth", instance="x", model="m", phase="streaming"} 0+1x60
berth_upstream_errors_total{job="berth", instance="x", model="m", phase="connect"} 0+900x60
berth_releases_total{job="berth", instance="x", model="m", cause="finished"} 0+600x60
berth_config_last_reload_successful{job="berth", instance="x"} 1x60
berth_connections{job="berth", instance="x"} 70x60
berth_connections_limit{job="berth", instance="x"} 100x60
berth_buffered_bytes{job="berth", instance="x"} 70x60
berth_buffered_bytes_limit{job="berth", instance="x"} 100x60
berth_exhausted_total{job="berth", instance="x"} 7x60
berth_draining{job="berth", instance="x"} 0x60
berth_decision_log_dropped_total{job="berth", instance="x"} 7x60
berth_access_log_dropped_total{job="berth", instance="x"} 7x60
berth_agent_releases_total{job="agent", instance="y", cause="expired"} 7x60
`

// faults has for each alert what differs from a healthy fleet when it must fire.
var faults = map[string]string{
	"BerthAbsent": `berth_config_last_reload_successful{job="berth", instance="x"} 1x50 stale`,
	"BerthModelUnavailable": `berth_replica_up{job="berth", instance="x", model="m", replica="a"} 0x60
		berth_replica_up{job="berth", instance="x", model="m", replica="b"} 0x60`,
	"BerthErrorRatioHigh":  `berth_requests_total{job="berth", instance="x", model="m", route="/chat/completions", status="503"} 0+90x60`,
	"BerthStreamsBroken":   `berth_upstream_errors_total{job="berth", instance="x", model="m", phase="streaming"} 0+60x60`,
	"BerthQueueNeverEmpty": `berth_queue_length{job="berth", instance="x", model="m"} 1x60`,
	"BerthQueueSaturated": `berth_queue_length{job="berth", instance="x", model="m"} 0x40 1024x20
		berth_requests_total{job="berth", instance="x", model="m", route="/chat/completions", status="429"} 0+60x60`,
	"BerthReplicaUnavailable": `berth_replica_state{job="berth", instance="x", model="m", replica="a", state="serving"} 0x60
		berth_replica_state{job="berth", instance="x", model="m", replica="a", state="half_open"} 1x60`,
	"BerthReplicaFlapping": `berth_replica_ejections_total{job="berth", instance="x", model="m", replica="a"} 0x50 9x10`,
	"BerthReloadFailed":    `berth_config_last_reload_successful{job="berth", instance="x"} 1x30 0x30`,
	"BerthSlotsStuck": `berth_slots{job="berth", instance="x", model="m", replica="a", state="running"} 1x60
		berth_releases_total{job="berth", instance="x", model="m", cause="finished"} 600x60`,
	"BerthConnectionsNearLimit":     `berth_connections{job="berth", instance="x"} 90x60`,
	"BerthMemoryForBodiesNearLimit": `berth_buffered_bytes{job="berth", instance="x"} 90x60`,
	"BerthExhausted":                `berth_exhausted_total{job="berth", instance="x"} 7x55 8x5`,
	"BerthDrainSlow":                `berth_draining{job="berth", instance="x"} 1x60`,
	"BerthLogLinesDropped":          `berth_access_log_dropped_total{job="berth", instance="x"} 7x55 8x5`,
	"BerthAgentLeasesExpire":        `berth_agent_releases_total{job="agent", instance="y", cause="expired"} 7x55 20x5`,
}

// mayFireToo lists alerts that the fault of another one explains as well.
var mayFireToo = map[string][]string{
	"BerthQueueNeverEmpty": {"BerthQueueSaturated"},
}

// Each alert fires for its fault and for no other, and none for a healthy fleet.
func TestAlertsFireForTheirFaultAlone(t *testing.T) {
	all := alerts(t)
	for name := range all {
		if _, ok := faults[name]; !ok {
			t.Errorf("%s has no fault that makes it fire", name)
		}
	}
	for _, fault := range append(slices.Sorted(maps.Keys(faults)), "none") {
		q := history{samples: parseHistory(t, healthy, faults[fault])}
		for name, a := range all {
			fires := q.evaluate(t, name, a.Expr) > 0
			if fires != (name == fault) && !slices.Contains(mayFireToo[name], fault) {
				t.Errorf("fault %s: %s fires: %v", fault, name, fires)
			}
		}
	}
}

// The alerts on replicas fire on what berth itself exports while a replica does not exist, and for
// that replica only.
func TestAlertsFireForTheMetricsOfBerth(t *testing.T) {
	var page strings.Builder
	for _, s := range scrape(t) {
		page.WriteString(s.labels.String() + " " + s.value + "x60\n")
	}
	q := history{samples: parseHistory(t, page.String(), "")}
	for name, a := range alerts(t) {
		want := 0
		if name == "BerthModelUnavailable" || name == "BerthReplicaUnavailable" {
			want = 1
		}
		if got := q.evaluate(t, name, a.Expr); got != want {
			t.Errorf("%s fires for %d series, want %d", name, got, want)
		}
	}
}

// history is an hour of samples, and what a query of Prometheus reads from.
type history struct {
	samples map[string]storage.Series
}

// parseHistory parses lines of series. Those of changes replace the ones of base with equal labels.
func parseHistory(t *testing.T, base, changes string) map[string]storage.Series {
	t.Helper()
	all := map[string]storage.Series{}
	for line := range strings.Lines(base + "\n" + changes) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		series, values, err := promql.ParseSeriesDesc(line)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		var list []chunks.Sample
		for minute, v := range values {
			if !v.Omitted {
				list = append(list, point{int64(minute) * time.Minute.Milliseconds(), v.Value})
			}
		}
		all[series.String()] = storage.NewListSeries(series, list)
	}
	return all
}

// evaluate returns the number of series for which an alert would fire after an hour, if that
// lasted. Recorded metrics are replaced by the expressions that record them.
func (h history) evaluate(t *testing.T, name, expr string) int {
	t.Helper()
	for changed := true; changed; {
		before := expr
		for _, r := range rules(t) {
			if r.Record != "" {
				expr = strings.ReplaceAll(expr, r.Record, "("+r.Expr+")")
			}
		}
		changed = expr != before
	}
	engine := prom.NewEngine(prom.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, LookbackDelta: 5 * time.Minute,
		NoStepSubqueryIntervalFn: func(int64) int64 { return time.Minute.Milliseconds() }})
	defer engine.Close()
	query, err := engine.NewInstantQuery(t.Context(), h, nil, expr, time.Unix(0, 0).Add(time.Hour))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	defer query.Close()
	result := query.Exec(t.Context())
	vector, err := result.Vector()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return len(vector)
}

// Querier returns h itself: it has all samples, and the engine drops those outside of the range.
func (h history) Querier(int64, int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		var found []storage.Series
		for _, name := range slices.Sorted(maps.Keys(h.samples)) {
			s := h.samples[name]
			if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Labels().Get(m.Name)) }) {
				found = append(found, s)
			}
		}
		return &seriesSet{series: found, at: -1}
	}}, nil
}

// seriesSet iterates over series.
type seriesSet struct {
	series []storage.Series
	at     int
}

func (s *seriesSet) Next() bool                        { s.at++; return s.at < len(s.series) }
func (s *seriesSet) At() storage.Series                { return s.series[s.at] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

// point is a float at a time in milliseconds.
type point struct {
	at    int64
	value float64
}

func (p point) T() int64                      { return p.at }
func (p point) ST() int64                     { return 0 }
func (p point) F() float64                    { return p.value }
func (p point) H() *histogram.Histogram       { return nil }
func (p point) FH() *histogram.FloatHistogram { return nil }
func (p point) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (p point) Copy() chunks.Sample           { return p }
