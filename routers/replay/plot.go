package replay

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
	"time"
)

// A plot is two panels: hit rate against balance, and how many requests had
// their first token within a time.
const (
	plotWidth, plotHeight = 1100, 490
	panelTop, panelHeight = 50, 340
	panelWidth            = 420
	leftPanel, rightPanel = 60, 560
)

var colours = []string{"#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#9c755f", "#edc948", "#ff9da7", "#79706e"}

// Plot writes results as an SVG picture.
func Plot(w io.Writer, results []*Result) error {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", plotWidth, plotHeight)
	plotBalance(&b, results)
	plotTimes(&b, results)
	for i, r := range results {
		x, y := leftPanel+(i%5)*205, plotHeight-26+i/5*16
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="10" height="10" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n",
			x, y-9, colours[i%len(colours)], x+15, y, html.EscapeString(r.Policy))
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// frame draws a panel's axes and titles.
func frame(b *strings.Builder, left int, title, axis string) {
	fmt.Fprintf(b, `<text x="%d" y="%d" font-size="15">%s</text>`+"\n", left, panelTop-16, title)
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#999"/>`+"\n", left, panelTop, panelWidth, panelHeight)
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", left+panelWidth/2, panelTop+panelHeight+34, axis)
}

// below labels a place on the axis at the bottom, beside labels one on the axis at the left; places are parts
// of the axis's length.
func below(b *strings.Builder, left int, x float64, label string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle" fill="#666">%s</text>`+"\n", at(left, x), panelTop+panelHeight+16, label)
}

func beside(b *strings.Builder, left int, y float64, label string) {
	fmt.Fprintf(b, `<text x="%d" y="%.1f" text-anchor="end" fill="#666">%s</text>`+"\n", left-6, height(y)+4, label)
}

func at(left int, x float64) float64 { return float64(left) + x*panelWidth }
func height(y float64) float64       { return panelTop + (1-y)*panelHeight }

func plotBalance(b *strings.Builder, results []*Result) {
	frame(b, leftPanel, "hit rate, of what is possible", "prefill work of the busiest replica over the mean")
	most := 1.5
	for _, r := range results {
		most = max(most, math.Ceil(r.MaxOverMean*4)/4)
	}
	for i := range 5 {
		part := float64(i) / 4
		below(b, leftPanel, part, fmt.Sprintf("%.2f", 1+part*(most-1)))
		beside(b, leftPanel, part, fmt.Sprintf("%.2f", part))
	}
	for i, r := range results {
		x, y := (r.MaxOverMean-1)/(most-1), min(ratio(r.HitRate, r.Ceiling), 1)
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="6" fill="%s" fill-opacity="0.85"/>`+"\n", at(leftPanel, x), height(y), colours[i%len(colours)])
	}
}

func plotTimes(b *strings.Builder, results []*Result) {
	frame(b, rightPanel, "requests with their first token", "time to first token")
	first, last := 10*time.Millisecond, time.Second
	for _, r := range results {
		for last < 1000*time.Second && len(r.ttft) > 0 && r.ttft[len(r.ttft)-1] > last {
			last *= 10
		}
	}
	decades := math.Log10(float64(last) / float64(first))
	for t := first; t <= last; t *= 10 {
		below(b, rightPanel, math.Log10(float64(t)/float64(first))/decades, t.String())
	}
	for i := range 5 {
		beside(b, rightPanel, float64(i)/4, fmt.Sprintf("%d %%", 25*i))
	}
	for i, r := range results {
		fmt.Fprintf(b, `<polyline fill="none" stroke="%s" stroke-width="2" points="`, colours[i%len(colours)])
		for step := range 201 {
			if len(r.ttft) == 0 {
				break
			}
			part := float64(step) / 200
			t := r.ttft[int(part*float64(len(r.ttft)-1))]
			x := math.Log10(max(float64(t)/float64(first), 1)) / decades
			fmt.Fprintf(b, "%.1f,%.1f ", at(rightPanel, min(x, 1)), height(part))
		}
		b.WriteString(`"/>` + "\n")
	}
}
