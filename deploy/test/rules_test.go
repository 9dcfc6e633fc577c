package main

import (
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
)

const rulesFile = "../prometheus/berth.rules.yml"

// rules returns all rules of the file, which Prometheus would load.
func rules(t *testing.T) (all []rulefmt.Rule) {
	t.Helper()
	groups, errs := rulefmt.ParseFile(rulesFile, false, model.UTF8Validation, promql, slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for _, g := range groups.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// alerts returns the alerts by name.
func alerts(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	all := map[string]rulefmt.Rule{}
	for _, r := range rules(t) {
		if r.Alert != "" {
			all[r.Alert] = r
		}
	}
	if len(all) < 10 {
		t.Fatalf("%d alerts", len(all))
	}
	return all
}

func TestRulesUseMetricsAndLabelsThatExist(t *testing.T) {
	known := catalogue(t)
	for _, r := range rules(t) {
		checkExpr(t, known, rulesFile+": "+r.Record+r.Alert, r.Expr)
	}
}

// alertRow is a row of the table of alerts in docs/operations.md.
var alertRow = regexp.MustCompile("(?m)^\\| `(Berth\\w+)` \\|")

// Each alert has a severity, a summary, and a row in the document that its runbook names.
func TestRulesOfAlertsHaveARunbook(t *testing.T) {
	var rows []string
	for _, row := range alertRow.FindAllStringSubmatch(readFile(t, "../../docs/operations.md"), -1) {
		rows = append(rows, row[1])
	}
	all := alerts(t)
	for name, a := range all {
		if a.Labels["severity"] != "page" && a.Labels["severity"] != "ticket" {
			t.Errorf("%s has the severity %q", name, a.Labels["severity"])
		}
		if a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("%s has no summary or description", name)
		}
		file, anchor, _ := strings.Cut(a.Annotations["runbook"], "#")
		text, err := os.ReadFile("../../" + file)
		if err != nil || !strings.Contains(strings.ToLower(string(text)), "\n## "+anchor+"\n") {
			t.Errorf("%s: the runbook %s does not exist: %v", name, a.Annotations["runbook"], err)
		}
		if !slices.Contains(rows, name) {
			t.Errorf("docs/operations.md has no row of %s in the table of alerts", name)
		}
	}
	for _, row := range rows {
		if _, ok := all[row]; !ok {
			t.Errorf("docs/operations.md has a row of %s, which does not exist", row)
		}
	}
}
