package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestClientComparesResponsesByteForByte(t *testing.T) {
	for _, altered := range []bool{false, true} {
		e := new(engine)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if altered {
				w.Write([]byte("data: "))
			}
			e.handleCompletion(w, r)
		}))
		for _, req := range []chatRequest{{MaxTokens: 16}, {Stream: true, MaxTokens: 3}, {Stream: true, MaxTokens: 3, GapMS: 1}} {
			c := newClient(server.Listener.Addr().String(), req, 1000)
			c.measuring.Store(true)
			conn, err := c.dial()
			if err != nil {
				t.Fatal(err)
			}
			err = c.sendRequest(conn, time.Now(), -1)
			if altered != (err != nil) || !altered && (c.requests.Load() != 1 || req.Stream && c.events.Load() < 3) {
				t.Errorf("%+v, altered %t: %v, %d requests, %d events", req, altered, err, c.requests.Load(), c.events.Load())
			}
			conn.Close()
		}
		server.Close()
	}
}

func TestReportReplacesTheSectionOfThePage(t *testing.T) {
	r := &result{workload: workloads[1], rounds: 3, targets: []string{"direct", "berth", "haproxy"}, figures: map[string]figures{
		"berth": median([]figures{{CPU: 3}, {CPU: 20}, {CPU: 18, Failures: 1}}), "haproxy": {CPU: 12},
	}}
	file := filepath.Join(t.TempDir(), "page.md")
	os.WriteFile(file, []byte("before\n<!-- bench -->\nstale section\n<!-- /bench -->\nafter\n"), 0o644)
	if err := replaceSection(file, "bench", resultSection([]*result{r}, "x.svg", "0.10")); err != nil {
		t.Fatal(err)
	}
	got, _ := os.ReadFile(file)
	text := string(got)
	if !strings.HasPrefix(text, "before\n<!-- bench -->") || !strings.HasSuffix(text, "<!-- /bench -->\nafter\n") || strings.Contains(text, "stale section") {
		t.Errorf("the page after replaceSection:\n%s", text)
	}
	if !strings.Contains(text, "| berth | 18.0 | 1.50 |") || !strings.Contains(string(barChart([]*result{r})), "berth 18.0 µs/event") {
		t.Errorf("figures missing in the page or the chart:\n%s", text)
	}
	columns := 0
	for line := range strings.Lines(r.table()) {
		if strings.HasPrefix(line, "|") {
			if n := strings.Count(line, "|"); columns != 0 && n != columns {
				t.Errorf("%q has %d columns, want %d", line, n, columns)
			} else {
				columns = n
			}
		}
	}
}

func TestRouterTargetsAreSkippedIfInstallationFails(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	all, err := newRouterTargets("127.0.0.1:1")
	if err != nil || len(all) != 0 {
		t.Errorf("got %v, %v; want no target and no error", all, err)
	}
}

func TestRouterArgumentsNameWorkerAndPorts(t *testing.T) {
	for _, r := range routers {
		got := strings.Join(r.arguments("python", "127.0.0.1:1", "127.0.0.1:2", "round_robin", "http://127.0.0.1:3", "http://127.0.0.1:4"), " ")
		for _, want := range []string{"--host 127.0.0.1 --port 1 ", "--prometheus-port 2 ", "--policy round_robin ", "--worker-urls http://127.0.0.1:3 http://127.0.0.1:4 "} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q lacks %q", r.name, got, want)
			}
		}
		if !isRouter(r.name) || isRouter("berth") {
			t.Errorf("isRouter: %s is %t and berth is %t, want true and false", r.name, isRouter(r.name), isRouter("berth"))
		}
	}
}

// The chart and the tables of the goodput have a line for each target.
func TestReportOfOverloadShowsEachTarget(t *testing.T) {
	r := &overloadResult{targets: []string{"berth", "haproxy"}, lasts: 10 * time.Second, figures: make(map[string][]*overloadFigures)}
	for i, name := range r.targets {
		for range overloadMultiples {
			f := new(overloadFigures)
			for range 240 * (2 - i) {
				f.add(overloadOutcome{status: 200, complete: true, first: time.Second})
			}
			f.add(overloadOutcome{status: 429, first: 2 * time.Millisecond})
			f.add(overloadOutcome{left: true})
			f.add(overloadOutcome{status: 500})
			r.figures[name] = append(r.figures[name], f)
		}
	}
	dir := t.TempDir()
	page := filepath.Join(dir, "page.md")
	os.WriteFile(page, []byte("<!-- overload -->\n<!-- /overload -->\n"), 0o644)
	if err := r.write(page, "0.10"); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(page)
	chart, _ := os.ReadFile(filepath.Join(dir, "goodput.svg"))
	for _, want := range []string{"| berth | 1.00 | 1.00 |", "| haproxy | 0.50 | 0.50 |", "| berth | 483 | 480 | 1000, 1000 | 1 | 2, 2 | 1 | 1 |"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if n := strings.Count(string(chart), "<polyline"); n != len(r.targets) {
		t.Errorf("the chart has %d lines", n)
	}
}
