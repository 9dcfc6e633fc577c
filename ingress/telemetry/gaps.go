package telemetry

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"berth/streaming"
)

// gapHistogram collects the inter-token gaps of a model's streams. Each stream counts its gaps and
// adds them once, at the end: if every event were observed here, all streams would write to the
// same cache lines.
type gapHistogram struct {
	desc *prometheus.Desc

	mu      sync.Mutex // guards the fields below
	streams int
	counts  [len(streaming.InterTokenGaps{}.Counts)]uint64
	seconds float64
}

func newGapHistogram(model string) *gapHistogram {
	return &gapHistogram{desc: prometheus.NewDesc("berth_inter_token_seconds",
		"Time from one event with content to the next, counted at the end of the stream.", nil, prometheus.Labels{"model": model})}
}

func (h *gapHistogram) addStream(g *streaming.InterTokenGaps) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.streams++
	for i, n := range g.Counts {
		h.counts[i] += uint64(n)
	}
	h.seconds += g.Sum.Seconds()
}

func (h *gapHistogram) Describe(ch chan<- *prometheus.Desc) { ch <- h.desc }

// Collect exposes the histogram once there was a stream.
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
