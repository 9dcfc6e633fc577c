package telemetry

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	documented = regexp.MustCompile("(?m)^\\| `(berth_\\w+)` \\| ([a-z, ]*) ?\\|")
	described  = regexp.MustCompile(`fqName: "(berth_\w+)".*constLabels: \{(\w*)[^}]*\}, variableLabels: \{([^}]*)\}`)
)

// docs/operations.md has a row with name, labels and meaning for each metric.
func TestMetricsAreAllDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[string]string)
	for _, row := range documented.FindAllStringSubmatch(string(page), -1) {
		if !strings.HasPrefix(row[1], "berth_agent_") {
			rows[row[1]] = strings.ReplaceAll(strings.TrimSpace(row[2]), " ", "")
		}
	}
	descs := make(chan *prometheus.Desc, 1000)
	newTelemetry().metrics.registry.Describe(descs)
	close(descs)
	exported := make(map[string]string)
	for desc := range descs {
		if d := described.FindStringSubmatch(desc.String()); d != nil { // not Go's own
			exported[d[1]] = strings.Trim(d[2]+","+d[3], ",")
		}
	}
	for name, labels := range exported {
		if row, ok := rows[name]; !ok || row != labels {
			t.Errorf("%s has the labels %q: add or correct its row in the table of metrics in docs/operations.md: | `%s` | %s | meaning |",
				name, labels, name, strings.ReplaceAll(labels, ",", ", "))
		}
	}
	for name := range rows {
		if _, ok := exported[name]; !ok {
			t.Errorf("%s is not exported: remove its row from the table of metrics in docs/operations.md", name)
		}
	}
}
