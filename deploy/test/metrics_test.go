package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// metric is what is known of a metric: its labels, the text in which values of labels are named as
// code, and the values that a scrape had, as label=value.
type metric struct {
	labels []string
	text   string
	values []string
}

var metricRow = regexp.MustCompile("(?m)^\\| `(berth_\\w+)` \\| ([a-z, ]*) ?\\|(.*)$")

// documentedMetrics returns the metrics of docs/operations.md, which tests beside the metrics
// compare with those that exist.
func documentedMetrics(t *testing.T) map[string]*metric {
	t.Helper()
	all := map[string]*metric{}
	for _, row := range metricRow.FindAllStringSubmatch(readFile(t, "../../docs/operations.md"), -1) {
		m := &metric{text: row[3]}
		for l := range strings.SplitSeq(row[2], ",") {
			if l = strings.TrimSpace(l); l != "" {
				m.labels = append(m.labels, l)
			}
		}
		all[row[1]] = m
	}
	if len(all) < 30 {
		t.Fatalf("docs/operations.md documents %d metrics", len(all))
	}
	return all
}

// scrapeConfig has a model that serves and one whose replica does not exist.
const scrapeConfig = `
http: {address: "127.0.0.1:0"}
admin: {address: ""}
llm_configs:
  - model_loading_config: {model_id: demo}
    deployment_config: {num_replicas: 2, max_ongoing_requests: 1, max_queued_requests: 1}
    simulated: {decode_step_ms: 1}
  - model_loading_config: {model_id: gone}
    replicas: [{id: dead, url: "http://127.0.0.1:1"}]
`

// sample is a line of a page of metrics.
type sample struct {
	labels labels.Labels
	value  string
}

// scrape starts an ingress and an agent, has them serve some requests, and returns their metrics.
func scrape(t *testing.T) []sample {
	t.Helper()
	file := filepath.Join(t.TempDir(), "berth.yaml")
	if err := os.WriteFile(file, []byte(scrapeConfig), 0o644); err != nil {
		t.Fatal(err)
	}
	ingress := startBerth(t, "serve", "--config", file)
	agent := startBerth(t, "llmserver", "--simulated", "--address", "127.0.0.1:0", "--max-ongoing-requests", "4")
	var clients sync.WaitGroup
	for _, model := range []string{"demo", "demo", "demo", "demo", "demo", "gone"} {
		for _, url := range []string{ingress, agent} {
			clients.Go(func() {
				body := `{"model": "` + model + `", "stream": true, "max_tokens": 30, "messages": [{"role": "user", "content": "Hello"}]}`
				response, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, response.Body)
				response.Body.Close()
			})
		}
	}
	clients.Wait()
	samples := parseMetrics(t, get(t, ingress+"/metrics"), "berth")
	return append(samples, parseMetrics(t, get(t, agent+"/metrics"), "agent")...)
}

// parseMetrics parses a page of metrics and adds the labels that a scrape adds.
func parseMetrics(t *testing.T, page, job string) (samples []sample) {
	t.Helper()
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		series, err := promql.ParseMetric(line[:at])
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		b := labels.NewBuilder(series)
		b.Set("job", job).Set("instance", job+"-0")
		samples = append(samples, sample{b.Labels(), line[at+1:]})
	}
	return samples
}

// catalogue returns all metrics by name: the documented ones, and with their labels those that are
// scraped or recorded.
func catalogue(t *testing.T) map[string]*metric {
	t.Helper()
	all := map[string]*metric{}
	for name, m := range documentedMetrics(t) {
		all[name] = m
		if strings.HasSuffix(name, "_seconds") && !strings.HasSuffix(name, "_timestamp_seconds") || strings.HasSuffix(name, "_ratio") {
			all[name+"_bucket"] = &metric{labels: append(slices.Clone(m.labels), "le"), text: m.text}
			all[name+"_sum"], all[name+"_count"] = m, m
		}
	}
	for _, s := range scrape(t) {
		name := s.labels.Get(labels.MetricName)
		m, known := all[name]
		if !known {
			m = &metric{}
			all[name] = m
			if strings.HasPrefix(name, "berth_") {
				t.Errorf("%s is exported and not documented", name)
			}
		}
		s.labels.Range(func(l labels.Label) {
			if !slices.Contains(m.labels, l.Name) {
				m.labels = append(m.labels, l.Name)
			}
			m.values = append(m.values, l.Name+"="+l.Value)
		})
	}
	for _, r := range rules(t) {
		if r.Record != "" {
			all[r.Record] = &metric{labels: aggregatedBy(t, r.Expr)}
		}
	}
	return all
}

// promql parses expressions as Prometheus does by default.
var promql = parser.NewParser(parser.Options{})

func parseExpr(t *testing.T, where, text string) parser.Expr {
	t.Helper()
	e, err := promql.ParseExpr(text)
	if err != nil {
		t.Fatalf("%s: %v in %s", where, err, text)
	}
	return e
}

// aggregatedBy returns the labels of the aggregations in an expression.
func aggregatedBy(t *testing.T, text string) (by []string) {
	t.Helper()
	parser.Inspect(parseExpr(t, text, text), func(n parser.Node, _ []parser.Node) error {
		if a, ok := n.(*parser.AggregateExpr); ok {
			by = append(by, a.Grouping...)
		}
		return nil
	})
	return by
}

// scraped are the labels that Prometheus adds to every series.
var scraped = []string{"job", "instance"}

// openValues are labels whose values operators and clients choose.
var openValues = []string{"job", "instance", "model", "replica", "key", "route", "status", "le", labels.MetricName}

// checkExpr checks that the metrics of an expression exist, with the labels that it selects and
// groups by, and that values of labels are possible.
func checkExpr(t *testing.T, known map[string]*metric, where, text string) {
	t.Helper()
	parser.Inspect(parseExpr(t, where, text), func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.VectorSelector:
			m, ok := known[n.Name]
			if !ok {
				t.Errorf("%s: there is no metric %s", where, n.Name)
				return nil
			}
			for _, match := range n.LabelMatchers {
				checkMatcher(t, where, n.Name, m, match)
			}
		case *parser.AggregateExpr:
			for _, by := range n.Grouping {
				if !slices.Contains(append(labelsBelow(known, n.Expr), scraped...), by) {
					t.Errorf("%s: %s has no label %s to group by", where, n.Expr, by)
				}
			}
		}
		return nil
	})
}

// labelsBelow returns the labels that the metrics of an expression have.
func labelsBelow(known map[string]*metric, e parser.Expr) (all []string) {
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok && known[s.Name] != nil {
			all = append(all, known[s.Name].labels...)
		}
		return nil
	})
	return all
}

func checkMatcher(t *testing.T, where, name string, m *metric, match *labels.Matcher) {
	t.Helper()
	if match.Name != labels.MetricName && !slices.Contains(append(m.labels, scraped...), match.Name) {
		t.Errorf("%s: %s has no label %s", where, name, match.Name)
	}
	if slices.Contains(openValues, match.Name) {
		return
	}
	for value := range strings.SplitSeq(match.Value, "|") {
		if !strings.Contains(m.text, "`"+value+"`") && !slices.Contains(m.values, match.Name+"="+value) {
			t.Errorf("%s: neither docs/operations.md nor a scrape has %s{%s=%q}", where, name, match.Name, value)
		}
	}
}
