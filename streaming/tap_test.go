package streaming

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// observed holds the results of a Tap that are compared.
type observed struct {
	Events       int
	Done, Failed bool
	Usage        Usage
}

// observe relays a response through a Tap.
func observe(t testing.TB, resp *http.Response) observed {
	t.Helper()
	var tap Tap
	if _, err := new(Relay).Copy(t.Context(), newRecorder(), resp, &tap); err != nil {
		t.Fatal(err)
	}
	return observed{tap.Events, tap.Done, tap.Failed, tap.Usage()}
}

const usageEvent = `data: {"id":"1","choices":[],"usage":{"prompt_tokens":40,"total_tokens":62,"completion_tokens":22,` +
	`"prompt_tokens_details":{"cached_tokens":32}}}` + "\n\n"

var usage = Usage{PromptTokens: 40, CompletionTokens: 22, CachedTokens: 32}

func TestTapOfEventStreams(t *testing.T) {
	for name, test := range map[string]struct {
		stream string
		want   observed
	}{
		"nothing":              {"", observed{}},
		"chunks":               {chunk + chunk, observed{Events: 2}},
		"an unfinished one":    {chunk + chunk[:len(chunk)-1], observed{Events: 1}},
		"comments":             {": ping\n\n" + chunk + ": pong\n\n", observed{Events: 1}},
		"a good end":           {chunk + "data: [DONE]\n\n", observed{Events: 1, Done: true}},
		"an end without LF":    {chunk + "data: [DONE]", observed{Events: 1, Done: true}},
		"DONE in a text":       {"data: {\"content\":\"data: [DONE]\"}\n\n", observed{Events: 1}},
		"usage":                {chunk + usageEvent + "data:[DONE]\n\n", observed{Events: 2, Done: true, Usage: usage}},
		"usage, then null":     {usageEvent + "data: {\"usage\":null}\n\n", observed{Events: 2, Usage: usage}},
		"cumulative usage":     {strings.ReplaceAll(usageEvent, "22", "21") + usageEvent, observed{Events: 2, Usage: usage}},
		"spaced usage":         {"data: {\"usage\" : {\"prompt_tokens\": 7}}\n\n", observed{Events: 1, Usage: Usage{PromptTokens: 7}}},
		"usage in a text":      {"data: {\"content\":\"{\\\"usage\\\":{\\\"prompt_tokens\\\":7}}\"}\n\n", observed{Events: 1}},
		"usage without counts": {usageEvent + "data: {\"usage\":{\"type\":\"string\"}}\n\n", observed{Events: 2, Usage: usage}},
		"negative usage":       {"data: {\"usage\":{\"prompt_tokens\":-7}}\n\n", observed{Events: 1}},
		"an error":             {chunk + brokenEvent, observed{Events: 2, Failed: true}},
		"a named error":        {"event: error\ndata: {\"type\":\"error\"}\n\n", observed{Events: 1, Failed: true}},
		"no error":             {"data: {\"error\":null}\n\ndata: {\"content\":\"an \\\"error\\\":{}\"}\n\n", observed{Events: 2}},
		"an error deep down":   {"data: {\"a\":{\"error\":{}}}\n\n", observed{Events: 1}},
		"several data lines":   {"data: {\ndata: }\n\n", observed{Events: 1}},
		"other line ends":      {"data: 1\r\n\r\ndata: 2\r\rdata: 3\r\r\ndata: [DONE]\r\n\r\n", observed{Events: 3, Done: true}},
		"responses usage": {"event: response.completed\ndata: {\"response\":{\"usage\":{\"input_tokens\":40,\"input_tokens_details\":" +
			"{\"cached_tokens\":32},\"output_tokens\":22,\"total_tokens\":62}}}\n\n", observed{Events: 1, Usage: usage}},
		"an event too long to hold": {chunk + strings.Replace(usageEvent, `"id":"1"`, `"id":"`+strings.Repeat("1", 2*largeBuffer)+`"`, 1) +
			chunk, observed{Events: 3, Usage: usage}},
	} {
		for _, size := range []int{1, 7, len(test.stream) + 1} {
			var pieces []string
			for piece := range slices.Chunk([]byte(test.stream), size) {
				pieces = append(pieces, string(piece))
			}
			if got := observe(t, events(&script{pieces: pieces})); got != test.want {
				t.Errorf("%s, in pieces of %d: %+v, want %+v", name, size, got, test.want)
			}
		}
		known := events(&script{pieces: []string{test.stream}})
		known.ContentLength = int64(len(test.stream))
		if got := observe(t, known); got != test.want {
			t.Errorf("%s, of known length: %+v, want %+v", name, got, test.want)
		}
	}
}

func TestTapIgnoresPiecesOfALongLine(t *testing.T) {
	const piece = "data: [DONE]"
	pieces := slices.Repeat([]string{piece}, 2*largeBuffer/len(piece))
	pieces = append(pieces, "\n\n")
	if got := observe(t, events(&script{pieces: pieces})); got != (observed{Events: 1}) {
		t.Errorf("%+v", got)
	}

	start := strings.TrimSuffix(longEvent(largeBuffer), "\n\n")
	if got := observe(t, events(&script{pieces: []string{start, "\r", "\ndata: 2\r\n\r\n"}})); got != (observed{Events: 1}) {
		t.Errorf("with a line end in two pieces: %+v", got)
	}
}

func TestTapUsageAtEndOfJSONBody(t *testing.T) {
	const tail = `"usage":{"prompt_tokens":40,"completion_tokens":22,"total_tokens":62,"prompt_tokens_details":{"cached_tokens":32}}}`
	for _, size := range []int{0, 1, smallBuffer, largeBuffer - len(tail)/2, largeBuffer, 3*largeBuffer + 1} {
		body := `{"data":"` + strings.Repeat("x", size) + `",` + tail
		for _, length := range []int64{-1, int64(len(body))} {
			resp := response("application/json; charset=utf-8", &script{pieces: []string{body[:len(body)/2], body[len(body)/2:]}})
			resp.ContentLength = length
			if got := observe(t, resp); got != (observed{Usage: usage}) {
				t.Errorf("%d bytes of length %d: %+v", len(body), length, got)
			}
		}
	}
}

func TestTapIgnoresOtherMediaTypes(t *testing.T) {
	for name, header := range map[string]http.Header{
		"text":       {"Content-Type": {"text/plain"}},
		"compressed": {"Content-Type": {"text/event-stream"}, "Content-Encoding": {"gzip"}},
	} {
		resp := events(&script{pieces: []string{usageEvent}})
		resp.Header = header
		if got := observe(t, resp); got != (observed{}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestTapOfRecordedStreams(t *testing.T) {
	for name, stream := range streams(t) {
		name, _, _ := strings.Cut(name, " with ")
		got := observe(t, events(&script{pieces: []string{stream}}))
		if want := strings.Contains(stream, "[DONE]"); got.Done != want {
			t.Errorf("%s: done %t, want %t", name, got.Done, want)
		}
		if name == "agent-harness__text.sse" && got.Usage != (Usage{PromptTokens: 5, CompletionTokens: 2}) {
			t.Errorf("%s: %+v", name, got.Usage)
		}
		if got.Failed || got.Events == 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func FuzzTapAtEverySplit(f *testing.F) {
	f.Add(chunk+usageEvent+brokenEvent+"data: [DONE]\n\n", uint8(1))
	f.Add("event: error\r\rdata:{\"error\":{}}\r\n\r\n: c\n\ndata", uint8(3))
	f.Add(`data: {"usage":{"prompt_tokens":1e300,"prompt_tokens_details":7}}`+"\n\n", uint8(9))
	f.Fuzz(func(t *testing.T, stream string, size uint8) {
		var pieces []string
		for piece := range slices.Chunk([]byte(stream), int(size)+1) {
			pieces = append(pieces, string(piece))
		}
		if a, b := observePieces(t, stream, int(size)+1).ContentEvents(), observePieces(t, stream, len(stream)+1).ContentEvents(); a != b {
			t.Fatalf("%q has %d events with content in pieces of %d, %d at once", stream, a, int(size)+1, b)
		}
		whole := observe(t, events(&script{pieces: []string{stream}}))
		if split := observe(t, events(&script{pieces: pieces})); split != whole {
			t.Fatalf("%q gives %+v in pieces of %d, %+v at once", stream, split, int(size)+1, whole)
		}
		if u := whole.Usage; min(u.PromptTokens, u.CompletionTokens, u.CachedTokens) < 0 {
			t.Fatalf("%q gives %+v", stream, u)
		}
	})
}

// An endlessBody is a stream of this many events, one per read.
type endlessBody struct{ events int }

func (e *endlessBody) Read(p []byte) (int, error) {
	if e.events == 0 {
		return 0, io.EOF
	}
	e.events--
	return copy(p, chunk), nil
}

func (e *endlessBody) Close() error { return nil }

// A discardWriter is a client that discards what is written.
type discardWriter struct{ header http.Header }

func (d discardWriter) Header() http.Header         { return d.header }
func (d discardWriter) WriteHeader(int)             {}
func (d discardWriter) Write(p []byte) (int, error) { return len(p), nil }
func (d discardWriter) Flush()                      {}

func TestRelayEventAllocatesNothing(t *testing.T) {
	stream := func(events int) float64 {
		return testing.AllocsPerRun(20, func() {
			var tap Tap
			resp := response("text/event-stream", &endlessBody{events})
			if _, err := new(Relay).Copy(t.Context(), discardWriter{http.Header{}}, resp, &tap); err != nil || tap.Events != events {
				t.Fatal(tap.Events, err)
			}
		})
	}
	if few, many := stream(10), stream(1010); many-few > 10 {
		t.Errorf("a thousand events more cost %v allocations", many-few)
	}
}

func BenchmarkRelayPerEvent(b *testing.B) {
	for name, tap := range map[string]*Tap{"without a tap": nil, "with a tap": new(Tap)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(chunk)))
			resp := response("text/event-stream", &endlessBody{b.N})
			if _, err := new(Relay).Copy(b.Context(), discardWriter{http.Header{}}, resp, tap); err != nil {
				b.Fatal(err)
			}
		})
	}
}

func BenchmarkRelayResponse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		resp := response("text/event-stream", &endlessBody{1})
		if _, err := (&Relay{WriteTimeout: 1e9}).Copy(b.Context(), discardWriter{http.Header{}}, resp, nil); err != nil {
			b.Fatal(err)
		}
	}
}
