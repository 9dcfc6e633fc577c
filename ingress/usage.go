package ingress

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"berth/streaming"
)

// told counts what an answer told while it passed, also one that was cut off.
func (x *exchange) told(result streaming.Result) {
	model := x.model.config.ID
	x.result = result
	if !result.FirstByte.IsZero() {
		x.metrics.firstByte.WithLabelValues(model).Observe(result.FirstByte.Sub(x.began).Seconds())
	}
	if !x.tap.FirstContent.IsZero() {
		x.metrics.firstToken.WithLabelValues(model).Observe(x.tap.FirstContent.Sub(x.began).Seconds())
		x.metrics.gaps.add(model, &x.tap.Gaps)
	}
	u := x.tap.Usage()
	if u == (streaming.Usage{}) {
		x.countTokens("estimated", int64(x.tap.Contents()))
		return
	}
	x.countTokens("prompt", u.PromptTokens)
	x.countTokens("completion", u.CompletionTokens)
	x.countTokens("cached", u.CachedTokens)
}

func (x *exchange) countTokens(kind string, n int64) {
	if n > 0 {
		x.metrics.tokens.WithLabelValues(x.model.config.ID, keyName(x.c), kind).Add(float64(n))
	}
}

// gapHistogram collects the gaps of streams by model. A stream counts its own and adds them here once, at its end: an
// observation of each event would have all streams write to the same few words of memory.
type gapHistogram struct {
	mu     sync.Mutex
	models map[string]*gapSum
}

type gapSum struct {
	counts  [len(streaming.Gaps{}.Counts)]uint64
	seconds float64
}

var descGaps = prometheus.NewDesc("berth_inter_token_seconds",
	"From one event with content to the next, counted when the stream is over.", []string{"model"}, nil)

func (h *gapHistogram) add(model string, g *streaming.Gaps) {
	h.mu.Lock()
	defer h.mu.Unlock()
	sum := h.models[model]
	if sum == nil {
		sum = new(gapSum)
		h.models[model] = sum
	}
	for i, n := range g.Counts {
		sum.counts[i] += uint64(n)
	}
	sum.seconds += g.Sum.Seconds()
}

// DeletePartialMatch drops the series of a model, as it does of the other metrics.
func (h *gapHistogram) DeletePartialMatch(labels prometheus.Labels) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.models, labels["model"])
	return 1
}

func (h *gapHistogram) Describe(ch chan<- *prometheus.Desc) { ch <- descGaps }

func (h *gapHistogram) Collect(ch chan<- prometheus.Metric) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for model, sum := range h.models {
		below, buckets := uint64(0), make(map[float64]uint64, len(streaming.GapBounds))
		for i, bound := range streaming.GapBounds {
			below += sum.counts[i]
			buckets[bound.Seconds()] = below
		}
		below += sum.counts[len(streaming.GapBounds)]
		ch <- prometheus.MustNewConstHistogram(descGaps, below, sum.seconds, buckets, model)
	}
}
