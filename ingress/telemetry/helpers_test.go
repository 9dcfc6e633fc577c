package telemetry

import (
	"bytes"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// logBuffer is the output of a logger under test.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// take returns the text logged since the last take.
func (b *logBuffer) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.text.Reset()
	return b.text.String()
}

func (b *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

// newTelemetry returns a Telemetry that exposes the models' metrics and logs nothing.
func newTelemetry(models ...ModelState) *Telemetry {
	return New(Options{Log: slog.New(slog.DiscardHandler), Decisions: true, State: func() State { return State{Models: models} }})
}

// counterValues returns the values of a metric's series by their labels, joined by commas in the
// order of the labels' names.
func counterValues(t *testing.T, c prometheus.Collector, name string) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := make(map[string]float64)
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, series := range family.Metric {
			var labels []string
			for _, label := range series.Label {
				labels = append(labels, label.GetValue())
			}
			value := series.GetCounter().GetValue()
			if h := series.GetHistogram(); h != nil {
				value = float64(h.GetSampleCount())
			}
			values[strings.Join(labels, ",")] = value
		}
	}
	return values
}

// Describe and Collect let tests gather the metrics of a model alone.
func (m *ModelMetrics) Describe(ch chan<- *prometheus.Desc) { m.describe(ch) }
func (m *ModelMetrics) Collect(ch chan<- prometheus.Metric) { m.collect(ch) }

// allocated returns how many bytes f allocates, freed ones included.
func allocated(f func()) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc - before.TotalAlloc)
}

// cpu returns the CPU time of this process.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// receive waits for an element that must come.
func receive[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(10 * time.Second):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}
