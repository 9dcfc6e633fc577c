package ingress

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"berth/streaming"
)

// told counts what an answer told while it passed, also one that was cut off.
func (x *proxyRequest) told(result streaming.Result) {
	x.result = result
	m := x.model.metrics
	if !result.FirstByte.IsZero() {
		m.firstByte.Observe(result.FirstByte.Sub(x.began).Seconds())
	}
	if !x.tap.FirstContent.IsZero() {
		m.firstToken.Observe(x.tap.FirstContent.Sub(x.began).Seconds())
		m.gaps.add(&x.tap.Gaps)
	}
	u := x.tap.Usage()
	if u == (streaming.Usage{}) {
		x.countTokens("estimated", int64(x.tap.ContentEvents()))
		return
	}
	x.countTokens("prompt", u.PromptTokens)
	x.countTokens("completion", u.CompletionTokens)
	x.countTokens("cached", u.CachedTokens)
}

func (x *proxyRequest) countTokens(kind string, n int64) {
	if n > 0 {
		x.visit.count(x.model.metrics.tokens, keyName(x.c), kind).Add(float64(n))
	}
}

// gapHistogram collects the gaps of a model's streams. A stream counts its own and adds them here once, at its end: an
// observation of each event would have all streams write to the same few words of memory.
type gapHistogram struct {
	desc *prometheus.Desc

	mu      sync.Mutex // guards what follows
	streams int
	counts  [len(streaming.InterTokenGaps{}.Counts)]uint64
	seconds float64
}

func newGapHistogram(model string) *gapHistogram {
	return &gapHistogram{desc: prometheus.NewDesc("berth_inter_token_seconds",
		"From one event with content to the next, counted when the stream is over.", nil, prometheus.Labels{"model": model})}
}

func (h *gapHistogram) add(g *streaming.InterTokenGaps) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.streams++
	for i, n := range g.Counts {
		h.counts[i] += uint64(n)
	}
	h.seconds += g.Sum.Seconds()
}

func (h *gapHistogram) Describe(ch chan<- *prometheus.Desc) { ch <- h.desc }

// Collect shows the histogram once there was a stream.
func (h *gapHistogram) Collect(ch chan<- prometheus.Metric) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.streams == 0 {
		return
	}
	below, buckets := uint64(0), make(map[float64]uint64, len(streaming.GapBounds))
	for i, bound := range streaming.GapBounds {
		below += h.counts[i]
		buckets[bound.Seconds()] = below
	}
	below += h.counts[len(streaming.GapBounds)]
	ch <- prometheus.MustNewConstHistogram(h.desc, below, h.seconds, buckets)
}
