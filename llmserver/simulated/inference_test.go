package simulated

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// A recorder records the requests in flight whenever the end of a response is written.
type recorder struct {
	http.ResponseWriter
	engine *Engine
	atEnd  []int64
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
func (r *recorder) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(`"finish_reason":"length"`)) || bytes.Contains(p, []byte("[DONE]")) || bytes.Contains(p, []byte(`"error"`)) {
		r.atEnd = append(r.atEnd, r.engine.Stats().InFlight)
		if running := runningPrompts(r.engine); running != 0 {
			r.atEnd = append(r.atEnd, int64(running))
		}
	}
	return r.ResponseWriter.Write(p)
}

func runningPrompts(e *Engine) (running int) {
	e.withBatch(func(b *Batch) { running = b.Running() + b.Waiting() })
	return running
}

func TestSimulatedRequestIsFinishedBeforeItsResponseEnds(t *testing.T) {
	e := New(atOnce)
	defer e.Close()
	ends := make(chan []int64, 3)
	server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := &recorder{ResponseWriter: w, engine: e}
		e.Handler().ServeHTTP(rec, r)
		ends <- rec.atEnd
	})}
	url := serve(t, &server)
	var atEnd []int64
	for _, body := range []string{chatBody + `}`, chatBody + `,"stream":true,"n":2}`, `{`} {
		if _, response, err := post(t, httpClient(t), url+"/v1/chat/completions", body); err != nil {
			t.Fatal(err, response)
		}
		atEnd = append(atEnd, <-ends...)
	}
	if want := []int64{0, 0, 0, 0, 0}; !slices.Equal(atEnd, want) {
		t.Errorf("in flight at the end of a response, of two choices, of [DONE] and of an error: %v, want %v", atEnd, want)
	}
}

// A framer records writes that are not exactly one event, and counts flushes.
type framer struct {
	http.ResponseWriter
	writes, flushes int
	odd             []string
}

func (f *framer) Unwrap() http.ResponseWriter { return f.ResponseWriter }
func (f *framer) Write(p []byte) (int, error) {
	f.writes++
	if s := string(p); !strings.HasPrefix(s, "data: ") || !strings.HasSuffix(s, "\n\n") || strings.Count(s, "\n") != 2 || f.flushes != f.writes-1 {
		f.odd = append(f.odd, s)
	}
	return f.ResponseWriter.Write(p)
}

func (f *framer) FlushError() error {
	f.flushes++
	return http.NewResponseController(f.ResponseWriter).Flush()
}

func TestSimulatedEventIsOneWriteAndOneFlush(t *testing.T) {
	e := New(atOnce)
	defer e.Close()
	f := &framer{ResponseWriter: httptest.NewRecorder()}
	request := httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(chatBody+`,"n":2,"stream":true,"stream_options":{"include_usage":true}}`))
	e.Handler().ServeHTTP(f, request)
	// Two roles, five tokens of two choices, usage, [DONE].
	if f.writes != 14 || f.flushes != 14 || f.odd != nil {
		t.Errorf("%d writes, %d flushes, of them not one event: %q", f.writes, f.flushes, f.odd)
	}
}

// An auditor compares the sent tokens with the generated ones.
type auditor struct {
	http.ResponseWriter
	engine *Engine
	sent   int64
	early  int // tokens sent before they were generated
}

func (a *auditor) Unwrap() http.ResponseWriter { return a.ResponseWriter }
func (a *auditor) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(`"text":"`)) {
		a.sent++
		if a.sent > a.engine.Stats().GeneratedTokens {
			a.early++
		}
	}
	return a.ResponseWriter.Write(p)
}

func TestSimulatedTokenIsNotSentBeforeItIsGenerated(t *testing.T) {
	e := New(Config{DecodeStep: time.Millisecond})
	defer e.Close()
	a := &auditor{engine: e}
	ended := make(chan struct{})
	server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		a.ResponseWriter = w
		e.Handler().ServeHTTP(a, r)
	})}
	url := serve(t, &server)
	if _, _, err := post(t, httpClient(t), url+"/v1/completions", `{"prompt":["a","b"],"n":2,"max_tokens":10,"stream":true}`); err != nil {
		t.Fatal(err)
	}
	<-ended
	if a.sent != 40 || a.early != 0 {
		t.Errorf("%d tokens sent, %d of them early", a.sent, a.early)
	}
}

func TestSimulatedConcurrentRequestsAreCountedAndBounded(t *testing.T) {
	config := atOnce
	config.MaxOngoing = 4
	s := mustListen(t, config)
	var clients sync.WaitGroup
	for i := range 12 {
		c := httpClient(t)
		clients.Go(func() {
			for n := range 20 {
				body := fmt.Sprintf(`{"prompt":"%d","max_tokens":%d,"stream":%t}`, i, n+1, n%2 == 0)
				ctx, cancel := context.WithCancel(context.Background())
				req, _ := http.NewRequestWithContext(ctx, "POST", s.URL()+"/v1/completions", strings.NewReader(body))
				if resp, err := c.Do(req); err == nil {
					if n%5 == 0 {
						cancel()
					}
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				cancel()
			}
		})
	}
	clients.Wait()
	until(t, "nothing in flight", func() bool { return s.Engine().Stats().InFlight == 0 })
	st := s.Engine().Stats()
	if st.Requests != 240 || st.Completed+st.Aborted+st.Refused != 240 || st.Completed == 0 || st.MaxInFlight > 4 {
		t.Errorf("%+v", st)
	}
	if n := runningPrompts(s.Engine()); n != 0 {
		t.Errorf("%d sequences left", n)
	}
}

func TestSimulatedSuccessorIsNeverRefused(t *testing.T) {
	config := atOnce
	config.MaxOngoing = 1
	s := mustListen(t, config)
	c := httpClient(t)
	for n := range 200 {
		resp, body, err := post(t, c, s.URL()+"/v1/chat/completions", fmt.Sprintf(`%s,"stream":%t}`, chatBody, n%2 == 0))
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("request %d: %v %s", n, err, body)
		}
	}
	if st := s.Engine().Stats(); st.Completed != 200 || st.MaxInFlight != 1 {
		t.Errorf("%+v", st)
	}
}

func TestSimulatedDisconnectStopsTheJobInEveryPhase(t *testing.T) {
	config := testConfig
	config.MaxRunning = 1
	for phase, body := range map[string]string{
		"prefill":   `{"prompt":"` + strings.Repeat("x", 400_000) + `"}`,
		"streaming": `{"prompt":"x","max_tokens":100000,"stream":true}`,
		"whole":     `{"prompt":"x","max_tokens":100000}`,
		"waiting":   `{"prompt":"y","max_tokens":7}`,
	} {
		t.Run(phase, func(t *testing.T) {
			s := mustListen(t, config)
			e := s.Engine()
			if phase == "waiting" {
				w := mustSubmit(t, e, &Sequence{Prompt: 100_000, Choices: 1, Limit: 1})
				defer w.cancelRemaining()
			}
			before := runningPrompts(e)
			ctx, cancel := context.WithCancel(t.Context())
			req, _ := http.NewRequestWithContext(ctx, "POST", s.URL()+"/v1/completions", strings.NewReader(body))
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				if resp, err := httpClient(t).Do(req); err == nil {
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			until(t, "the request is at work", func() bool { return runningPrompts(e) == before+1 })
			if phase == "streaming" || phase == "whole" {
				until(t, "tokens flow", func() bool { return e.Stats().GeneratedTokens > 3 })
			}
			cancel()
			<-gone
			until(t, "the work is gone", func() bool { return e.Stats().InFlight == 0 && runningPrompts(e) == before })
			st := e.Stats()
			if st.Aborted != 1 || st.Completed != 0 || st.WastedTokens != st.GeneratedTokens {
				t.Errorf("%+v", st)
			}
		})
	}
}

func TestSimulatedMetricsParseAndMatchStats(t *testing.T) {
	s := mustListen(t, atOnce)
	for range 2 {
		if _, _, err := post(t, httpClient(t), s.URL()+"/v1/chat/completions", `{"messages":[{"role":"user","content":"`+strings.Repeat("abcd", 100)+`"}],"max_tokens":9}`); err != nil {
			t.Fatal(err)
		}
	}
	resp, err := httpClient(t).Get(s.URL() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	st := s.Engine().Stats()
	for name, want := range map[string]float64{
		"vllm:num_requests_running": 0, "vllm:num_requests_waiting": 0, "vllm:kv_cache_usage_perc": 0,
		"vllm:prefix_cache_queries_total": float64(st.PromptTokens), "vllm:prefix_cache_hits_total": float64(st.CachedTokens),
		"vllm:prompt_tokens_total": float64(st.PromptTokens), "vllm:generation_tokens_total": 18, "vllm:request_success_total": 2, "vllm:cache_config_info": 1,
	} {
		family := families[name]
		if family == nil {
			t.Errorf("no %s", name)
			continue
		}
		m := family.Metric[0]
		if got := m.GetGauge().GetValue() + m.GetCounter().GetValue(); got != want {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	if st.CachedTokens < 96 || st.PromptTokens < 200 {
		t.Errorf("%+v", st)
	}
}
