package ingress

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
)

// playing returns the URL of a replica that responds with the text in that content type, event by
// event.
func playing(t *testing.T, contentType, text string) string {
	return upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", contentType)
		for event := range strings.SplitAfterSeq(text, "\n\n") {
			io.WriteString(w, event)
			w.(http.Flusher).Flush()
		}
	})
}

const (
	firstChunk = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	textChunk  = `data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}` + "\n\n"
	usageChunk = `data: {"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":32}}}` + "\n\n"
	doneChunk  = "data: [DONE]\n\n"
)

func TestMetricsOfTokens(t *testing.T) {
	streams := modelOn("streams", playing(t, "text/event-stream", firstChunk+textChunk+textChunk+textChunk+usageChunk+doneChunk))
	silent := modelOn("silent", playing(t, "text/event-stream", firstChunk+textChunk+textChunk+doneChunk))
	whole := modelOn("whole", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"content":[{"type":"text","text":"Hi"}],"usage":{"input_tokens":8,"cache_read_input_tokens":32,"output_tokens":3}}`)
	}))
	f := serve(t, streams, silent, whole)
	for range 2 {
		for _, model := range []string{"streams", "silent", "whole"} {
			if r := f.chat(model); r.StatusCode != 200 || r.err != nil {
				t.Fatalf("%s: %d %v", model, r.StatusCode, r.err)
			}
		}
	}
	for series, want := range map[string]float64{
		`berth_tokens_total{key="",kind="prompt",model="streams"}`:     80,
		`berth_tokens_total{key="",kind="completion",model="streams"}`: 6,
		`berth_tokens_total{key="",kind="cached",model="streams"}`:     64,
		`berth_tokens_total{key="",kind="estimated",model="silent"}`:   4,
		`berth_tokens_total{key="",kind="prompt",model="whole"}`:       80,
		`berth_tokens_total{key="",kind="completion",model="whole"}`:   6,
		`berth_tokens_total{key="",kind="cached",model="whole"}`:       64,
		`berth_inter_token_seconds_count{model="streams"}`:             4,
		`berth_inter_token_seconds_bucket{model="streams",le="+Inf"}`:  4,
		`berth_time_to_first_token_seconds_count{model="streams"}`:     2,
	} {
		f.eventually(series, func() bool {
			n, _ := f.series(series)
			return n == want
		})
	}
	for _, series := range []string{
		`berth_tokens_total{key="",kind="estimated",model="streams"}`,
		`berth_time_to_first_token_seconds_count{model="whole"}`,
	} {
		if n, ok := f.series(series); ok {
			t.Errorf("%s is %v", series, n)
		}
	}
}

// A client that disconnects has used the tokens it got.
func TestMetricsOfTokensAfterADisconnect(t *testing.T) {
	f := serve(t, modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, textChunk+textChunk)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})))
	ctx, leave := context.WithCancel(t.Context())
	f.stream(ctx, f.h1).read(len(textChunk + textChunk))
	leave()
	f.eventually("the tokens are counted", func() bool {
		n, _ := f.series(`berth_tokens_total{key="",kind="estimated",model="m"}`)
		return n == 2
	})
}

func TestMetricsOfARemovedModelAreNotExposed(t *testing.T) {
	url := playing(t, "text/event-stream", textChunk+textChunk+usageChunk+doneChunk)
	f := serve(t, modelOn("m", url))
	f.chat("m")
	const gaps = `berth_inter_token_seconds_count{model="m"}`
	f.eventually("a gap is counted", func() bool {
		n, _ := f.series(gaps)
		return n == 1
	})
	if err := f.Apply(configured(modelOn("other", refusing(1)))); err != nil {
		t.Fatal(err)
	}
	if _, ok := f.series(gaps); ok {
		t.Error("the gaps of a removed model are exposed")
	}
	if _, ok := f.series(`berth_tokens_total{key="",kind="prompt",model="m"}`); ok {
		t.Error("the tokens of a removed model are exposed")
	}
}
