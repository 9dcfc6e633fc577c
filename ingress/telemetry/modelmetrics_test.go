package telemetry

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

func finished() *Request {
	start := time.Now()
	return &Request{Metrics: NewModelMetrics("m"), Route: "/chat/completions", Status: 200, Start: start, end: start.Add(time.Second)}
}

func TestModelMetricsCountWithoutAllocation(t *testing.T) {
	r := finished()
	r.Key, r.Measured, r.Waited, r.Response.FirstByte, r.Tap.FirstContent = "key", true, 1, r.end, r.end
	if n := testing.AllocsPerRun(100, r.countMetrics); n != 0 {
		t.Errorf("counting a request takes %v allocations", n)
	}
}

// Record of a request that is neither logged nor traced must not allocate: it is on every request's
// path.
func TestRecordWithoutLogsDoesNotAllocate(t *testing.T) {
	r, telemetry := finished(), newTelemetry()
	if n := testing.AllocsPerRun(100, func() { telemetry.Record(r) }); n != 0 {
		t.Errorf("recording a request takes %v allocations", n)
	}
}

// The first request of a key takes as much memory with a thousand keys as with a few.
func TestModelMetricsTakeANewKeyInConstantMemory(t *testing.T) {
	perKey := func(keys int) float64 {
		m := NewModelMetrics("m")
		return allocated(func() {
			for i := range keys {
				m.tokens.at(strconv.Itoa(i))
			}
		}) / float64(keys)
	}
	if few, many := perKey(250), perKey(2000); many > 3*few {
		t.Errorf("the first request of a key allocates %.0f bytes with 250 keys and %.0f with 2,000", few, many)
	}
}

func BenchmarkFirstRequestOfAKey(b *testing.B) {
	for _, n := range []int{250, 6000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			names := strings.Fields(strings.Repeat("k ", n))
			for i := range names {
				names[i] += strconv.Itoa(i)
			}
			for b.Loop() {
				m := NewModelMetrics("m")
				for _, name := range names {
					m.tokens.at(name)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/key")
		})
	}
}

func BenchmarkCountMetrics(b *testing.B) {
	r := finished()
	r.Key, r.Measured, r.Response.FirstByte, r.Tap.FirstContent = "key", true, r.end, r.end
	b.ReportAllocs()
	for b.Loop() {
		r.countMetrics()
	}
}
