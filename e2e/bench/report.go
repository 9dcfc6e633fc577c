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

// table returns the result in Markdown, with ratios to HAProxy if it was measured.
func (r *result) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "**%s**\n\n| | CPU µs/%s |", r.title, r.unit)
	haproxy, ratios := r.figures["haproxy"]
	if ratios {
		b.WriteString(" × HAProxy |")
	}
	fmt.Fprintf(&b, " %ss/s | first byte p50 ms | p99 ms |%s failed |\n|---|%s\n", r.unit, only(" KiB/stream |", r.ask.GapMS > 0), strings.Repeat("---:|", 5+truth(ratios)+truth(r.ask.GapMS > 0)))
	for _, name := range r.targets {
		f := r.figures[name]
		if name == "direct" {
			fmt.Fprintf(&b, "| %s | |%s %.0f | %.2f | %.2f |%s %d |\n", name, only(" |", ratios), f.Rate, f.First50, f.First99, only(" |", r.ask.GapMS > 0), f.Failures)
			continue
		}
		fmt.Fprintf(&b, "| %s | %.1f |", name, f.CPU)
		if ratios {
			fmt.Fprintf(&b, " %.2f |", f.CPU/max(haproxy.CPU, 0.001))
		}
		fmt.Fprintf(&b, " %.0f | %.2f | %.2f |%s %d |\n", f.Rate, f.First50, f.First99, only(fmt.Sprintf(" %.0f |", f.KiB), r.ask.GapMS > 0), f.Failures)
	}
	return b.String()
}

func only(text string, where bool) string { return strings.Repeat(text, truth(where)) }

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

const (
	begin = "<!-- bench -->"
	end   = "<!-- /bench -->"
)

// section returns the results as a section of a Markdown page.
func section(results []*result, picture, load string) string {
	routers := slices.ContainsFunc(results[0].targets, isRouter)
	does := "berth runs as it ships: it parses the body, hashes the prompt for prefix affinity, holds slots, counts tokens and keeps metrics; the access log is off.\n" +
		"HAProxy and nginx only forward bytes."
	if routers {
		does += " vllm-router and sglang-router run with their policy `cache_aware` and their defaults otherwise."
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nMeasured on %s by `go run ./e2e/bench%s -page docs/performance.md`: CPU time of the proxy's processes per unit of work, medians of\n"+
		"%d interleaved rounds on %d cores that client, engine and proxy share, %s. The load average before the run was %s.\n"+
		"The machine is saturated, so compare throughput and latency only within one table.\n\n%s\n\n![CPU time of the proxy per unit of work](%s)\n",
		begin, time.Now().Format(time.DateOnly), only(" -routers", routers), results[0].rounds, runtime.NumCPU(), runtime.Version(), load, does, picture)
	for _, r := range results {
		fmt.Fprintf(&b, "\n%s", r.table())
	}
	return b.String() + "\n" + end
}

// rewrite puts the section in its place in a file.
func rewrite(file, section string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, found := bytes.Cut(text, []byte(begin))
	_, after, closed := bytes.Cut(rest, []byte(end))
	if !found || !closed {
		return fmt.Errorf("%s has no place for the results, from %s to %s", file, begin, end)
	}
	return os.WriteFile(file, bytes.Join([][]byte{before, []byte(section), after}, nil), 0o644)
}

// colours are those of the bars, by target.
var colours = map[string]string{"berth": "#2563eb", "against": "#93c5fd", "haproxy": "#9ca3af", "nginx": "#d1d5db", "vllm-router": "#f59e0b", "sglang-router": "#fcd34d"}

// caption says what the bars are, so that the picture can stand alone.
const caption = "CPU time of the proxy alone, by kind of load; shorter is cheaper. Each group has a scale of its own. HAProxy and nginx only forward bytes."

// picture draws the CPU times. Each group of bars has a scale of its own.
func picture(results []*result) []byte {
	const bar, left, right, width = 18, 330, 90, 800
	var rows bytes.Buffer
	fmt.Fprintf(&rows, `<text x="8" y="18" fill="#555">%s</text>`+"\n", caption)
	y := 36
	for _, r := range results {
		most := 0.0
		for _, f := range r.figures {
			most = max(most, f.CPU)
		}
		fmt.Fprintf(&rows, `<text x="8" y="%d" font-weight="600">%s</text>`+"\n", y+13, r.title)
		for _, name := range r.targets {
			if name == "direct" {
				continue
			}
			cpu := r.figures[name].CPU
			long := cpu / max(most, 0.001) * (width - left - right)
			fmt.Fprintf(&rows, `<rect x="%d" y="%d" width="%.0f" height="%d" fill="%s"/><text x="%.0f" y="%d">%s %.1f µs/%s</text>`+"\n",
				left, y, long, bar-3, colours[name], left+long+5, y+12, name, cpu, r.unit)
			y += bar
		}
		y += 12
	}
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+
		"\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n%s</svg>\n", width+60, y, rows.Bytes())
}
