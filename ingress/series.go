package ingress

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// series are those of one metric. The library finds one by its labels in a tenth of a microsecond and more, which adds up
// over what every request counts; here the second time takes one look into a map, without a lock and without an allocation.
type series[V any] struct {
	vec interface {
		WithLabelValues(labels ...string) V
		DeletePartialMatch(prometheus.Labels) int
	}
	known atomic.Pointer[map[[3]string]V] // immutable; nil if empty

	mu sync.Mutex // guards stores to known
}

// WithLabelValues is the one series with these labels, three at most. It is not to be kept: its model may go.
func (s *series[V]) WithLabelValues(labels ...string) V {
	var key [3]string
	copy(key[:], labels)
	if known := s.known.Load(); known != nil {
		if v, ok := (*known)[key]; ok {
			return v
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.vec.WithLabelValues(slices.Clone(labels)...) // of a copy, so that labels need no memory of their own
	next := make(map[[3]string]V)
	if known := s.known.Load(); known != nil {
		maps.Copy(next, *known)
	}
	next[key] = v
	s.known.Store(&next)
	return v
}

// DeletePartialMatch drops the series with these labels. What adds to one of them at the same time is lost with it.
func (s *series[V]) DeletePartialMatch(labels prometheus.Labels) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known.Store(nil)
	return s.vec.DeletePartialMatch(labels)
}
