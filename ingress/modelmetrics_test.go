package ingress

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/config"
	"berth/internal/body"
)

func TestModelMetricsCountWithoutAllocation(t *testing.T) {
	m := newModelMetrics("m")
	v := &requestState{model: "m", metrics: m}
	count := func() {
		v.observed("/chat/completions", 200, time.Second)
		v.count(m.tokens, "key", "prompt").Inc()
		m.firstByte.Observe(1)
	}
	if n := testing.AllocsPerRun(100, count); n != 0 {
		t.Errorf("to count a request takes %v allocations", n)
	}
	if v.count(m.tokens, "key", "cached") == v.count(m.tokens, "key", "prompt") {
		t.Error("series are mixed up")
	}
}

// A model that comes back under its name begins at zero, whatever requests that outlived it count.
func TestModelMetricsOfARemovedModelAreNotShownAgain(t *testing.T) {
	g := gated(t)
	f := serve(t, modelOn("m", g.url), modelOn("other", refusing(1)))
	outliving := f.background(func() reply { return f.chat("m") })
	receive(t, g.arrived)
	f.mustApply(modelOn("other", refusing(1)))
	f.mustApply(modelOn("m", upstream(t, ok)), modelOn("other", refusing(1)))
	g.open <- struct{}{}
	receive(t, outliving)
	f.chat("m")
	f.eventually("the request of the new model is counted", func() bool {
		n, _ := f.series(`berth_requests_total{model="m",route="/chat/completions",status="200"}`)
		return n == 1
	})
	if n := f.metric(`berth_request_duration_seconds_count{model="m"}`); n != 1 {
		t.Errorf("counted %v requests, among them that of the model before", n)
	}
}

// The first request of a key takes as much memory with a thousand keys as with a few.
func TestModelMetricsTakeANewKeyInConstantWork(t *testing.T) {
	perKey := func(keys int) float64 {
		v, m := new(requestState), newModelMetrics("m")
		return allocated(func() {
			for i := range keys {
				v.count(m.tokens, strconv.Itoa(i), "prompt").Inc()
			}
		}) / float64(keys)
	}
	if few, many := perKey(250), perKey(2000); many > 3*few {
		t.Errorf("the first request of a key allocates %.0f bytes with 250 keys and %.0f with 2,000", few, many)
	}
}

func TestRegistryStartsAModelInConstantWork(t *testing.T) {
	perModel := func(n int) float64 {
		r, c := newRegistry(newMetrics(), slog.New(slog.DiscardHandler)), configured(modelsOf("m", n)...)
		defer r.close()
		return allocated(func() {
			if err := r.apply(c); err != nil {
				t.Fatal(err)
			}
		}) / float64(n)
	}
	if few, many := perModel(100), perModel(800); many > 3*few {
		t.Errorf("a model allocates %.0f bytes at the start of 100 models and %.0f at that of 800", few, many)
	}
}

func TestScrapeCostsTheSameAfterManyReloads(t *testing.T) {
	s := registryOnly(t)
	apply := func(generation int) {
		if err := s.registry.apply(configured(modelsOf(strconv.Itoa(generation)+"-", 2)...)); err != nil {
			t.Fatal(err)
		}
	}
	scrape := func() float64 { return testing.AllocsPerRun(5, func() { s.scrape(io.Discard) }) }
	apply(0)
	before := scrape()
	for i := range 300 {
		apply(i + 1)
	}
	if after := scrape(); after > 1.5*before {
		t.Errorf("a scrape makes %v allocations at first, and %v after 300 reloads that renamed the models", before, after)
	}
}

// modelsOf are n models, each on a replica of its own.
func modelsOf(prefix string, n int) (models []config.Model) {
	for i := range n {
		models = append(models, modelOn(prefix+strconv.Itoa(i), fmt.Sprintf("http://127.1.%d.%d:1", i/250, i%250)))
	}
	return models
}

// registryOnly is a server that listens nowhere.
func registryOnly(t testing.TB) *Server {
	s := &Server{log: slog.New(slog.DiscardHandler), metrics: newMetrics(), budget: body.NewBudget(1)}
	s.registry = newRegistry(s.metrics, s.log)
	s.metrics.registry.MustRegister(readings{s.registry, s.budget, &s.draining})
	s.metricsHandler = s.metrics.handler()
	t.Cleanup(s.registry.close)
	return s
}

func (s *Server) scrape(to io.Writer) {
	w := httptest.NewRecorder()
	s.metricsHandler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	w.Body.WriteTo(to)
}

// allocated returns how many bytes f allocates, freed ones included.
func allocated(f func()) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc - before.TotalAlloc)
}

func BenchmarkStartOfManyModels(b *testing.B) {
	for _, n := range []int{250, 2000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c := configured(modelsOf("m", n)...)
				s, err := New(c, slog.New(slog.DiscardHandler))
				if err != nil {
					b.Fatal(err)
				}
				s.Close()
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/model")
		})
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
				v, m := new(requestState), newModelMetrics("m")
				for _, name := range names {
					v.count(m.tokens, name, "prompt").Inc()
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/key")
		})
	}
}

func BenchmarkScrapeAfterReloads(b *testing.B) {
	for _, reloads := range []int{0, 50} {
		b.Run(strconv.Itoa(reloads), func(b *testing.B) {
			s := registryOnly(b)
			for i := range reloads + 1 {
				if err := s.registry.apply(configured(modelsOf(strconv.Itoa(i)+"-", 250)...)); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				s.scrape(io.Discard)
			}
		})
	}
}

// BenchmarkListReplicas lists all replicas, as each scrape does.
func BenchmarkListReplicas(b *testing.B) {
	for _, n := range []int{250, 8000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			s := registryOnly(b)
			if err := s.registry.apply(configured(modelsOf("m", n)...)); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if len(s.registry.allReplicas()) != n {
					b.Fatal("some are missing")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/replica")
		})
	}
}

func BenchmarkCountARequest(b *testing.B) {
	v := &requestState{model: "m", metrics: newModelMetrics("m")}
	b.ReportAllocs()
	for b.Loop() {
		v.observed("/chat/completions", 200, time.Second)
	}
}
