package replay

import (
	"cmp"
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// A plot has three parts: hit rate over balance, the distribution of the time to the first token,
// and a legend with the means.
const (
	plotWidth, plotHeight = 1180, 440
	panelTop, panelHeight = 84, 290
	panelWidth            = 370
	leftPanel, midPanel   = 64, 500
	legend, legendWidth   = 912, 240
	ownRadius, radius     = 6.5, 4.5
)

// style is how a policy is drawn.
type style struct {
	label, colour, dashes string
	own                   bool // one of berth's, not a baseline
}

var styles = map[string]style{
	"PrefixCacheAffinityRouter": {"prefix affinity", "#d1382c", "", true},
	"ConsistentHashRouter":      {"consistent hash", "#1f6fb4", "", true},
	"PowerOfTwoChoicesRouter":   {"power of two", "#e39b16", "", true},
	"RoundRobinRouter":          {"round robin", "#3a9150", "", true},
	"random":                    {"random", "#9aa0a6", "1 3", false},
	"least-requests":            {"least requests", "#7b6d8d", "6 3", false},
	"chwbl":                     {"CHWBL (KubeAI)", "#8c6d46", "2 2", false},
	"tree":                      {"tree (SGLang)", "#5f6b75", "8 3 2 3", false},
	"scored-blocks":             {"scored blocks (llm-d)", "#a0627e", "4 2", false},
	"longest-match":             {"longest match", "#4d8287", "10 4", false},
}

// styleOf returns the style of a policy, or the style of unknown ones.
func styleOf(r *Result) style {
	if l, ok := styles[r.Policy]; ok {
		return l
	}
	return style{r.Policy, "#444444", "", false}
}

// An svg is an SVG document under construction.
type svg struct{ strings.Builder }

// add appends a line.
func (p *svg) add(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// text appends a text with attributes.
func (p *svg) text(x, y float64, attributes, text string) {
	p.add(`<text x="%.1f" y="%.1f" %s>%s</text>`, x, y, attributes, html.EscapeString(text))
}

// Plot writes an SVG plot of results.
func Plot(w io.Writer, title string, results []*Result) error {
	drawn := slices.Clone(results) // berth's own policies on top
	slices.SortStableFunc(drawn, func(a, b *Result) int {
		return cmp.Or(boolean(styleOf(a).own)-boolean(styleOf(b).own), cmp.Compare(b.TTFTMean, a.TTFTMean))
	})
	p := new(svg)
	p.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#222">`, plotWidth, plotHeight)
	p.add(`<rect width="%d" height="%d" fill="white"/>`, plotWidth, plotHeight)
	p.text(leftPanel, 34, `font-size="17" font-weight="bold"`, title)
	p.balancePanel(drawn)
	p.timePanel(drawn)
	p.legend(results)
	p.add("</svg>")
	_, err := io.WriteString(w, p.String())
	return err
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// An axis is a logarithmic axis from left to right.
type axis struct {
	left        int
	first, last float64
}

func (a axis) at(v float64) float64 {
	part := math.Log(max(v, a.first)/a.first) / math.Log(a.last/a.first)
	return float64(a.left) + min(part, 1)*panelWidth
}

func height(part float64) float64 { return panelTop + (1-part)*panelHeight }

// panel draws the titles of a panel and the grid of the axes.
func (p *svg) panel(a axis, ticks []float64, label func(float64) string, title, below string) {
	p.text(float64(a.left), panelTop-18, `font-size="14" font-weight="bold"`, title)
	p.text(float64(a.left+panelWidth), panelTop-18, `text-anchor="end" fill="#777"`, "↖ better")
	p.text(float64(a.left+panelWidth/2), panelTop+panelHeight+40, `text-anchor="middle" fill="#555"`, below)
	for i := range 5 {
		part := float64(i) / 4
		p.add(`<path d="M%d %.1fh%d" stroke="#e6e6e6"/>`, a.left, height(part), panelWidth)
		p.text(float64(a.left)-8, height(part)+4, `text-anchor="end" fill="#555"`, fmt.Sprintf("%d %%", 25*i))
	}
	free := math.Inf(-1)
	for _, tick := range ticks {
		x := a.at(tick)
		if tick < a.first || tick > a.last || x < free {
			continue
		}
		free = x + 52
		p.add(`<path d="M%.1f %dv%d" stroke="#e6e6e6"/>`, x, panelTop, panelHeight)
		p.text(x, panelTop+panelHeight+18, `text-anchor="middle" fill="#555"`, label(tick))
	}
}

// balancePanel draws the hit rate of each policy over the balance of the fleet.
func (p *svg) balancePanel(results []*Result) {
	a := axis{leftPanel, 1, 1.5}
	for _, r := range results {
		a.last = max(a.last, 1.06*r.MaxOverMean)
	}
	p.panel(a, []float64{1, 1.1, 1.2, 1.3, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128},
		func(v float64) string { return fmt.Sprintf("%.3g×", v) },
		"Hit rate, of what is possible", "prefill work of the busiest replica over the mean")
	var taken []box
	for _, r := range results {
		x, y := a.at(r.MaxOverMean), height(min(1, ratio(r.HitRate, r.Ceiling)))
		taken = append(taken, box{x - radius, y - radius, x + radius, y + radius})
	}
	for i, r := range slices.Backward(results) {
		l, x, y := styleOf(r), (taken[i].left+taken[i].right)/2, (taken[i].top+taken[i].bottom)/2
		size, weight := radius, "normal"
		if l.own {
			size, weight = ownRadius, "bold"
		}
		name := placeLabel(x, y, size, 6.6*float64(len([]rune(l.label))), taken)
		taken = append(taken, name)
		if middle := (name.top + name.bottom) / 2; math.Abs(middle-y) > 14 {
			p.add(`<path d="M%.1f %.1fL%.1f %.1f" stroke="%s" stroke-width="0.7"/>`, x, y, max(name.left-2, min(x, name.right)), middle, l.colour)
		}
		p.text(name.left, name.bottom-4, fmt.Sprintf(`fill="%s" font-weight="%s"`, l.colour, weight), l.label)
		p.add(`<circle cx="%.1f" cy="%.1f" r="%.1f" fill="%s" stroke="white"/>`, x, y, size, l.colour)
	}
}

// box is the area of a drawn element.
type box struct{ left, top, right, bottom float64 }

// placeLabel returns the nearest place for a label beside a point, within the left panel and
// without overlap with a taken box.
func placeLabel(x, y, size, width float64, taken []box) (name box) {
	const line = 16
	for away := 0.0; away < panelHeight; away += line / 2 {
		for _, down := range []float64{away, -away} {
			for _, left := range []float64{x + size + 4, x - size - 4 - width} {
				name = box{left, y + down - line/2, left + width, y + down + line/2}
				inside := name.left > leftPanel && name.right < leftPanel+panelWidth+50 && name.top > panelTop-2 && name.bottom < panelTop+panelHeight
				if inside && !slices.ContainsFunc(taken, func(b box) bool {
					return b.left < name.right && name.left < b.right && b.top < name.bottom && name.top < b.bottom
				}) {
					return name
				}
			}
		}
	}
	return name
}

// timePanel draws the distribution of the time to the first token.
func (p *svg) timePanel(results []*Result) {
	a := axis{midPanel, math.Inf(1), 0}
	for _, r := range results {
		if len(r.ttft) > 0 {
			a.first, a.last = min(a.first, r.quantile(0.02)), max(a.last, r.quantile(0.995))
		}
	}
	if a.last <= a.first {
		a.first, a.last = 1, 1000
	}
	var ticks []float64
	for decade := 0.01; decade < 1e8; decade *= 10 {
		ticks = append(ticks, decade, 2*decade, 5*decade)
	}
	p.panel(a, ticks, func(ms float64) string { return time.Duration(ms * float64(time.Millisecond)).String() }, "Requests with their first token", "time since arrival")
	for _, r := range results {
		l, width := styleOf(r), 1.4
		if l.own {
			width = 2.6
		}
		p.add(`<polyline fill="none" stroke="%s" stroke-width="%.1f" stroke-dasharray="%s" stroke-linejoin="round" points="%s"/>`, l.colour, width, l.dashes, r.curve(a))
	}
}

// curve returns the points of the distribution within the axis.
func (r *Result) curve(a axis) string {
	var b strings.Builder
	for step := range 200 {
		if len(r.ttft) == 0 {
			break
		}
		part := float64(step+1) / 200
		if t := r.quantile(part); t >= a.first && t <= a.last {
			fmt.Fprintf(&b, "%.1f,%.1f ", a.at(t), height(part))
		}
	}
	return strings.TrimSpace(b.String())
}

// legend lists the policies by mean time, fastest first.
func (p *svg) legend(results []*Result) {
	sorted := slices.Clone(results)
	slices.SortStableFunc(sorted, func(a, b *Result) int { return cmp.Compare(a.TTFTMean, b.TTFTMean) })
	p.text(legend, panelTop-18, `font-size="14" font-weight="bold"`, "Mean time to the first token")
	row := min(panelHeight/float64(max(1, len(sorted))), 34)
	for i, r := range sorted {
		l, y, weight, width := styleOf(r), panelTop+row*float64(i), "normal", 1.4
		if l.own {
			weight, width = "bold", 2.6
		}
		p.add(`<path d="M%d %.1fh26" stroke="%s" stroke-width="%.1f" stroke-dasharray="%s"/>`, legend, y+7, l.colour, width, l.dashes)
		p.text(legend+34, y+11, fmt.Sprintf(`font-weight="%s"`, weight), l.label)
		p.text(legend+legendWidth, y+11, fmt.Sprintf(`text-anchor="end" font-weight="%s"`, weight), formatTime(r.TTFTMean))
		p.add(`<rect x="%d" y="%.1f" width="%.1f" height="5" rx="2" fill="%s" fill-opacity="0.75"/>`,
			legend+34, y+16, (legendWidth-34)*ratio(r.TTFTMean, sorted[len(sorted)-1].TTFTMean), l.colour)
	}
	p.text(legend, panelTop+panelHeight+40, `fill="#777"`, "bold: berth's; others for comparison")
}

// formatTime formats a time in milliseconds with three digits or so.
func formatTime(ms float64) string {
	switch d := time.Duration(ms * float64(time.Millisecond)); {
	case d >= 100*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d >= 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	default:
		return fmt.Sprintf("%.0f ms", ms)
	}
}
