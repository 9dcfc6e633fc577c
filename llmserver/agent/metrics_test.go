package agent

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/body"
)

var (
	listed    = regexp.MustCompile("(?m)^\\| `(berth_\\w+)` \\| ([a-z, ]*) ?\\|")
	described = regexp.MustCompile(`fqName: "(berth_\w+)".*variableLabels: \{([^}]*)\}`)
)

// Every metric has a row in docs/operations.md: name, labels and meaning.
func TestAgentMetricsAreAllDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[string]string)
	for _, row := range listed.FindAllStringSubmatch(string(page), -1) {
		if strings.HasPrefix(row[1], "berth_agent_") {
			rows[row[1]] = strings.ReplaceAll(strings.TrimSpace(row[2]), " ", "")
		}
	}
	descs := make(chan *prometheus.Desc, 1000)
	stateCollector{NewTable(1), new(body.Budget)}.Describe(descs)
	close(descs)
	exported := make(map[string]string)
	for desc := range descs {
		if d := described.FindStringSubmatch(desc.String()); d != nil { // not one of Go's collectors
			exported[d[1]] = d[2]
		}
	}
	for name, labels := range exported {
		if row, ok := rows[name]; !ok || row != labels {
			t.Errorf("%s has the labels %q: put or mend its row in the table of metrics in docs/operations.md: | `%s` | %s | what it counts |",
				name, labels, name, strings.ReplaceAll(labels, ",", ", "))
		}
	}
	for name := range rows {
		if _, ok := exported[name]; !ok {
			t.Errorf("%s is not exported: take its row out of the table of metrics in docs/operations.md", name)
		}
	}
}
