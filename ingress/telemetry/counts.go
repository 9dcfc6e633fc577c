package telemetry

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"berth/streaming"
)

// statusCounts counts responses by status. The memory of a class of statuses is allocated with the
// first response of that class. Any goroutine may call the methods, which do not block.
type statusCounts struct {
	classes [10]atomic.Pointer[[100]atomic.Uint64] // by the first digit
}

// add counts a response; status 0 stands for none. A status that HTTP lacks counts as 999.
func (c *statusCounts) add(status int) {
	if status < 0 || status > 999 {
		status = 999
	}
	class := &c.classes[status/100]
	counts := class.Load()
	if counts == nil {
		class.CompareAndSwap(nil, new([100]atomic.Uint64))
		counts = class.Load()
	}
	counts[status%100].Add(1)
}

// forEach calls f with the label of each counted status; that of 0 is "none".
func (c *statusCounts) forEach(f func(label string, n uint64)) {
	for i := range c.classes {
		counts := c.classes[i].Load()
		if counts == nil {
			continue
		}
		for j := range counts {
			if n := counts[j].Load(); n > 0 {
				f(statusLabel(100*i+j), n)
			}
		}
	}
}

func statusLabel(status int) string {
	if status == 0 {
		return "none"
	}
	return strconv.Itoa(status)
}

// tokenKinds are the labels of tokenCounts.
var tokenKinds = [...]string{"prompt", "completion", "cached", "estimated"}

// tokenCounts counts tokens by kind. Any goroutine may call the methods, which do not block.
type tokenCounts [len(tokenKinds)]atomic.Uint64

// add counts the tokens of a response: those reported, or else estimated.
func (c *tokenCounts) add(tap *streaming.Tap) {
	u, estimated := tap.Usage(), 0
	if u == (streaming.Usage{}) {
		estimated = tap.ContentEvents()
	}
	for kind, n := range [...]int64{u.PromptTokens, u.CompletionTokens, u.CachedTokens, int64(estimated)} {
		if n > 0 {
			c[kind].Add(uint64(n))
		}
	}
}

// forEach calls f with each kind of which there were tokens.
func (c *tokenCounts) forEach(f func(label string, n uint64)) {
	for kind := range c {
		if n := c[kind].Load(); n > 0 {
			f(tokenKinds[kind], n)
		}
	}
}

// labelledCounts exposes counters of type T, one T for each value of one label. Finding a T costs
// one lookup, for all the series in the T, and no allocation. A vector of prometheus takes a lock
// and hashes all labels for each series.
type labelledCounts[T any, P interface {
	*T
	forEach(func(label string, n uint64))
}] struct {
	desc *prometheus.Desc
	byID sync.Map // string to P
}

// at returns the counters for a value of the label, which must be one of a bounded set.
func (l *labelledCounts[T, P]) at(label string) P {
	if v, ok := l.byID.Load(label); ok {
		return v.(P)
	}
	v, _ := l.byID.LoadOrStore(strings.Clone(label), P(new(T))) // the label may be a part of a request
	return v.(P)
}

func (l *labelledCounts[T, P]) Describe(ch chan<- *prometheus.Desc) { ch <- l.desc }

func (l *labelledCounts[T, P]) Collect(ch chan<- prometheus.Metric) {
	for label, counts := range l.byID.Range {
		counts.(P).forEach(func(inner string, n uint64) {
			exposition{ch}.counter(l.desc, n, label.(string), inner)
		})
	}
}
