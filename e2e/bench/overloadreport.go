package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// tables returns the goodput by load, and what clients saw at twice the capacity.
func (r *overloadResult) tables() string {
	var b strings.Builder
	b.WriteString("| completed, as a part of the capacity, at |")
	for _, m := range overloadMultiples {
		fmt.Fprintf(&b, " %g × |", m)
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", len(overloadMultiples)) + "\n")
	for _, name := range r.targets {
		fmt.Fprintf(&b, "| %s |", name)
		for _, f := range r.figures[name] {
			fmt.Fprintf(&b, " %.2f |", f.goodput(r.lasts))
		}
		b.WriteString("\n")
	}
	b.WriteString("\n| at 2 × the capacity | requests | complete | first event p50, p99 ms | refused | refusal p50, p99 ms | client left | failed |\n|---|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, name := range r.targets {
		f := r.figures[name][slices.Index(overloadMultiples, 2)]
		pair := func(d []time.Duration) string {
			if len(d) == 0 {
				return ""
			}
			return quantile(d, 0.5) + ", " + quantile(d, 0.99)
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %s | %d | %s | %d | %d |\n", name, f.sent, f.completed, pair(f.first), f.refused, pair(f.refusal), f.left, f.failed)
	}
	return b.String()
}

// write writes the chart beside the page, and the tables into their section of the page.
func (r *overloadResult) write(page, load string) error {
	const chart = "goodput.svg"
	if err := os.WriteFile(filepath.Join(filepath.Dir(page), chart), r.chart(), 0o644); err != nil {
		return err
	}
	section := fmt.Sprintf("Measured on %s by `go run ./e2e/bench -work overload -time %v -page docs/performance.md` on %d cores, %s. The load average before the run was %s.\n\n![Goodput against offered load](%s)\n\n%s\n",
		time.Now().Format(time.DateOnly), r.lasts, runtime.NumCPU(), runtime.Version(), load, chart, r.tables())
	return replaceSection(page, "overload", section)
}

// chart returns an SVG line chart of the goodput against the offered load.
func (r *overloadResult) chart() []byte {
	const left, top, width, height, right = 60, 40, 520, 280, 180
	most := overloadMultiples[len(overloadMultiples)-1]
	x := func(multiple float64) float64 { return left + multiple/most*width }
	y := func(goodput float64) float64 { return top + (1-min(goodput, 1.1)/1.1)*height }
	var b bytes.Buffer
	fmt.Fprintf(&b, `<text x="8" y="18" fill="#555">Completed requests against offered load, both in multiples of the capacity; clients leave after 5 × the service time.</text>`+"\n")
	for _, tick := range []float64{0, 0.25, 0.5, 0.75, 1} {
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#e5e7eb"/><text x="%d" y="%.1f" text-anchor="end" fill="#555">%g</text>`+"\n",
			left, left+width, y(tick), y(tick), left-6, y(tick)+4, tick)
	}
	for _, m := range overloadMultiples {
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle" fill="#555">%g</text>`+"\n", x(m), top+height+18, m)
	}
	for i, name := range r.targets {
		var points []string
		for j, f := range r.figures[name] {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(overloadMultiples[j]), y(f.goodput(r.lasts))))
		}
		color, at := barColors[name], top+20+24*i
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2.5"/><line x1="%d" x2="%d" y1="%d" y2="%d" stroke="%s" stroke-width="2.5"/><text x="%d" y="%d">%s</text>`+"\n",
			strings.Join(points, " "), color, left+width+20, left+width+44, at, at, color, left+width+50, at+4, name)
	}
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+
		"\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n%s</svg>\n", left+width+right, top+height+32, b.Bytes())
}
