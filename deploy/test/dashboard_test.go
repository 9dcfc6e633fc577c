package main

import (
	"encoding/json"
	"strings"
	"testing"
)

const dashboardFile = "../grafana/berth.json"

// dashboard is what the test reads of a Grafana dashboard.
type dashboard struct {
	UID        string `json:"uid"`
	Templating struct {
		List []struct {
			Name, Type, Definition string
		} `json:"list"`
	} `json:"templating"`
	Panels []struct {
		ID      int    `json:"id"`
		Type    string `json:"type"`
		Title   string `json:"title"`
		GridPos struct{ H, W, X, Y int }
		Targets []struct{ Expr string }
	} `json:"panels"`
}

func TestDashboardQueriesMetricsAndLabelsThatExist(t *testing.T) {
	var d dashboard
	if err := json.Unmarshal([]byte(readFile(t, dashboardFile)), &d); err != nil {
		t.Fatal(err)
	}
	variables := []string{"$__rate_interval", "5m"}
	known, queries := catalogue(t), 0
	for _, v := range d.Templating.List {
		variables = append(variables, "$"+v.Name, ".*")
		if inner, ok := strings.CutPrefix(v.Definition, "label_values("); ok {
			selector, label, _ := strings.Cut(strings.TrimSuffix(inner, ")"), ", ")
			if at := strings.LastIndex(inner, ", "); at > 0 {
				selector, label = inner[:at], strings.TrimSuffix(inner[at+2:], ")")
			}
			checkExpr(t, known, dashboardFile+": variable "+v.Name, "count by ("+label+") ("+strings.ReplaceAll(selector, "$job", ".*")+")")
		}
	}
	replace := strings.NewReplacer(variables...)
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 || p.GridPos.W == 0 {
			t.Errorf("the panel %q has the id %d twice, or no place on the grid: %+v", p.Title, p.ID, p.GridPos)
		}
		ids[p.ID] = true
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("the panel %q has no query", p.Title)
		}
		for _, target := range p.Targets {
			queries++
			text := replace.Replace(target.Expr)
			if strings.Contains(text, "$") {
				t.Errorf("the panel %q uses a variable that does not exist: %s", p.Title, target.Expr)
				continue
			}
			checkExpr(t, known, dashboardFile+": "+p.Title, text)
		}
	}
	if queries < 30 {
		t.Errorf("%d queries were checked", queries)
	}
}
