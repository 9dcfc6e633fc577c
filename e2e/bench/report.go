package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// table returns the result as a Markdown table, with ratios to HAProxy if HAProxy was measured.
func (r *result) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "**%s**\n\n| | CPU µs/%s |", r.title, r.unit)
	haproxy, ratios := r.figures["haproxy"]
	if ratios {
		b.WriteString(" × HAProxy |")
	}
	fmt.Fprintf(&b, " %ss/s | first byte p50 ms | p99 ms |%s failed |\n|---|%s\n", r.unit, textIf(" KiB/stream |", r.request.GapMS > 0), strings.Repeat("---:|", 5+boolToInt(ratios)+boolToInt(r.request.GapMS > 0)))
	for _, name := range r.targets {
		f := r.figures[name]
		if name == "direct" {
			fmt.Fprintf(&b, "| %s | |%s %.0f | %.2f | %.2f |%s %d |\n", name, textIf(" |", ratios), f.Rate, f.First50, f.First99, textIf(" |", r.request.GapMS > 0), f.Failures)
			continue
		}
		fmt.Fprintf(&b, "| %s | %.1f |", name, f.CPU)
		if ratios {
			fmt.Fprintf(&b, " %.2f |", f.CPU/max(haproxy.CPU, 0.001))
		}
		fmt.Fprintf(&b, " %.0f | %.2f | %.2f |%s %d |\n", f.Rate, f.First50, f.First99, textIf(fmt.Sprintf(" %.0f |", f.KiB), r.request.GapMS > 0), f.Failures)
	}
	return b.String()
}

// textIf returns text if ok is true, else the empty string.
func textIf(text string, ok bool) string { return strings.Repeat(text, boolToInt(ok)) }

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// resultSection returns the results as a section of a Markdown page.
func resultSection(results []*result, chart, load string) string {
	routers := slices.ContainsFunc(results[0].targets, isRouter)
	description := "berth runs as it ships: it parses the body, hashes the prompt for prefix affinity, holds slots, counts tokens and keeps metrics; the access log is off.\n" +
		"HAProxy and nginx only forward bytes."
	if routers {
		description += " vllm-router and sglang-router run with their policy `cache_aware` and their defaults otherwise."
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s by `go run ./e2e/bench%s -page docs/performance.md`: CPU time of the proxy's processes per unit of work, medians of\n"+
		"%d interleaved rounds on %d cores that client, engine and proxy share, %s. The load average before the run was %s.\n"+
		"The machine is saturated, so compare throughput and latency only within one table.\n\n%s\n\n![CPU time of the proxy per unit of work](%s)\n",
		time.Now().Format(time.DateOnly), textIf(" -routers", routers), results[0].rounds, runtime.NumCPU(), runtime.Version(), load, description, chart)
	for _, r := range results {
		fmt.Fprintf(&b, "\n%s", r.table())
	}
	return b.String()
}

// replaceSection replaces the section between the comments <!-- name --> and <!-- /name --> in a
// file.
func replaceSection(file, name, section string) error {
	begin, end := "<!-- "+name+" -->", "<!-- /"+name+" -->"
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, found := bytes.Cut(text, []byte(begin))
	_, after, closed := bytes.Cut(rest, []byte(end))
	if !found || !closed {
		return fmt.Errorf("%s lacks the markers %s and %s", file, begin, end)
	}
	return os.WriteFile(file, bytes.Join([][]byte{before, []byte(begin + "\n\n" + section + "\n" + end), after}, nil), 0o644)
}

// barColors holds the color of each target's bars.
var barColors = map[string]string{"berth": "#2563eb", "against": "#93c5fd", "haproxy": "#9ca3af", "nginx": "#d1d5db", "vllm-router": "#f59e0b", "sglang-router": "#fcd34d"}

// chartCaption explains the bars within the chart.
const chartCaption = "CPU time of the proxy alone, by workload; shorter is cheaper. Each group has its own scale. HAProxy and nginx only forward bytes."

// barChart returns an SVG bar chart of the CPU times. Each group of bars has its own scale.
func barChart(results []*result) []byte {
	const bar, left, right, width = 18, 330, 90, 800
	var rows bytes.Buffer
	fmt.Fprintf(&rows, `<text x="8" y="18" fill="#555">%s</text>`+"\n", chartCaption)
	y := 36
	for _, r := range results {
		maxCPU := 0.0
		for _, f := range r.figures {
			maxCPU = max(maxCPU, f.CPU)
		}
		fmt.Fprintf(&rows, `<text x="8" y="%d" font-weight="600">%s</text>`+"\n", y+13, r.title)
		for _, name := range r.targets {
			if name == "direct" {
				continue
			}
			cpu := r.figures[name].CPU
			length := cpu / max(maxCPU, 0.001) * (width - left - right)
			fmt.Fprintf(&rows, `<rect x="%d" y="%d" width="%.0f" height="%d" fill="%s"/><text x="%.0f" y="%d">%s %.1f µs/%s</text>`+"\n",
				left, y, length, bar-3, barColors[name], left+length+5, y+12, name, cpu, r.unit)
			y += bar
		}
		y += 12
	}
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+
		"\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n%s</svg>\n", width+60, y, rows.Bytes())
}
