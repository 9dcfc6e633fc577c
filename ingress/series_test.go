package ingress

import (
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestASeriesIsFoundAgainWithoutAllocation(t *testing.T) {
	m := newMetrics()
	first := m.tokens.WithLabelValues("m", "key", "prompt")
	if m.tokens.WithLabelValues("m", "key", "cached") == first || m.tokens.WithLabelValues("m", "key", "prompt") != first {
		t.Error("series are mixed up")
	}
	if n := testing.AllocsPerRun(100, func() {
		m.tokens.WithLabelValues("m", "key", "prompt").Inc()
		m.duration.WithLabelValues("m").Observe(1)
	}); n != 0 {
		t.Errorf("to find a series costs %v allocations", n)
	}
}

// A series that went with its model must not be counted in once the model is back.
func TestASeriesThatWasDroppedBeginsAnew(t *testing.T) {
	m := newMetrics()
	gone := m.noText.WithLabelValues("m")
	var counting sync.WaitGroup
	for range 4 {
		counting.Go(func() {
			for range 1000 {
				m.noText.WithLabelValues("m").Inc()
			}
		})
	}
	for range 100 {
		m.noText.DeletePartialMatch(prometheus.Labels{"model": "m"})
	}
	counting.Wait()
	m.noText.DeletePartialMatch(prometheus.Labels{"model": "m"})
	now := m.noText.WithLabelValues("m")
	if now == gone || now != m.noText.vec.WithLabelValues("m") {
		t.Error("what is counted is not what is shown")
	}
}

func BenchmarkFindASeries(b *testing.B) {
	m := newMetrics()
	b.Run("here", func(b *testing.B) {
		for b.Loop() {
			m.requests.WithLabelValues("model", "/chat/completions", "200")
		}
	})
	b.Run("in the library", func(b *testing.B) {
		for b.Loop() {
			m.requests.vec.WithLabelValues("model", "/chat/completions", "200")
		}
	})
}
