package streaming

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// observePieces returns a Tap that has observed a stream in pieces of a size.
func observePieces(t *testing.T, stream string, size int) *Tap {
	t.Helper()
	var pieces []string
	for piece := range slices.Chunk([]byte(stream), size) {
		pieces = append(pieces, string(piece))
	}
	tap := new(Tap)
	if _, err := new(Relay).Copy(t.Context(), newRecorder(), events(&script{pieces: pieces}), tap); err != nil {
		t.Fatal(err)
	}
	return tap
}

func TestTapContentEvents(t *testing.T) {
	chat := func(delta string) string {
		return `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":` + delta + `,"finish_reason":null}],"usage":null}` + "\n\n"
	}
	named := func(event, data string) string { return "event: " + event + "\ndata: " + data + "\n\n" }
	for name, test := range map[string]struct {
		stream []string
		want   int
	}{
		"chat":             {[]string{chat(`{"role":"assistant","content":""}`), chat(`{"content":"Hel"}`), chat(`{"content":"lo"}`), chat(`{"content":""}`), chat(`{}`), usageEvent, "data: [DONE]\n\n"}, 2},
		"chat that thinks": {[]string{chat(`{"reasoning_content":"Hm"}`), chat(`{"content":null,"reasoning":"Hm"}`), chat(`{"content":"","reasoning_content":"m"}`), chat(`{"content":"A"}`)}, 4},
		"chat that calls":  {[]string{chat(`{"tool_calls":[{"index":0,"id":"1","function":{"name":"f","arguments":""}}]}`), chat(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"content\":\"\"}"}}]}`)}, 1},
		"chat with quotes": {[]string{chat(`{"content":"\""}`), chat(`{"content":"\",\"content\":\"x"}`), chat(`{"role":"\"content\":\"x"}`)}, 2},
		"chat with spaces": {[]string{chat(`{"content" : "a"}`), chat(`{"content": "b"}`), chat(`{"content": ""}`), "data: {\"content\":\t\"c\"}\n\n"}, 2},
		"completions":      {[]string{"data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n", "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n"}, 1},
		"messages": {[]string{
			named("message_start", `{"type":"message_start","message":{"id":"m","role":"assistant","content":[],"usage":{"input_tokens":25,"output_tokens":1}}}`),
			named("content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`),
			named("ping", `{"type":"ping"}`),
			named("content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}`),
			named("content_block_delta", `{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{"}}`),
			named("content_block_delta", `{"type":"content_block_delta","index":2,"delta":{"type":"thinking_delta","thinking":"Hm"}}`),
			named("message_delta", `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}`),
			named("message_stop", `{"type":"message_stop"}`)}, 3},
		"responses": {[]string{
			named("response.created", `{"type":"response.created","sequence_number":0,"response":{"id":"r","output":[]}}`),
			named("response.output_text.delta", `{"type":"response.output_text.delta","sequence_number":9,"delta":"Hel"}`),
			named("response.output_text.delta", `{"type":"response.output_text.delta","sequence_number":10,"delta":"lo"}`),
			named("response.output_text.done", `{"content_index":0,"text":"Hello","type":"response.output_text.done"}`),
			named("response.completed", `{"type":"response.completed","response":{"output":[{"content":[{"text":"Hello"}]}]}}`)}, 2},
		"several data lines": {[]string{"data: {\"content\":\ndata: \"a\"}\n\n", "data: {\"content\":\"a\",\ndata: \"text\":\"b\"}\n\n"}, 1},
		"comments":           {[]string{": {\"content\":\"a\"}\n\n", "id: {\"content\":\"a\"}\n\n"}, 0},
		"not JSON":           {[]string{"data: \"content\":\n\n", "data: \":\":\"\n\n", "data: content\n\n"}, 0},
	} {
		stream := strings.Join(test.stream, "")
		for _, size := range []int{1, 7, len(stream)} {
			if got := observePieces(t, stream, size).ContentEvents(); got != test.want {
				t.Errorf("%s, in pieces of %d: %d events with content, want %d", name, size, got, test.want)
			}
		}
	}
}

func TestTapTimesOfContentEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pauses := []time.Duration{time.Second, 4 * time.Millisecond, time.Minute, 6 * time.Millisecond, time.Hour}
		body := &script{pieces: []string{": ping\n\n", chunk, chunk + chunk, usageEvent, chunk}, before: func() {
			time.Sleep(pauses[0])
			pauses = append(pauses[1:], 0)
		}}
		began := time.Now()
		var tap Tap
		if _, err := new(Relay).Copy(t.Context(), newRecorder(), events(body), &tap); err != nil {
			t.Fatal(err)
		}
		if first := tap.FirstContent.Sub(began); first != time.Second+4*time.Millisecond {
			t.Errorf("the first content was written after %v", first)
		}
		want := InterTokenGaps{Sum: time.Minute + 6*time.Millisecond + time.Hour}
		want.Counts[0] = 1 // in one write with the event before
		want.Counts[len(GapBounds)] = 2
		if tap.Gaps != want {
			t.Errorf("the gaps are %+v, want %+v", tap.Gaps, want)
		}
	})
}

func TestTapGapBuckets(t *testing.T) {
	var got, want InterTokenGaps
	for i, bound := range GapBounds {
		got.add(bound)
		got.add(bound + 1)
		want.Counts[i]++
		want.Counts[i+1]++
		want.Sum += 2*bound + 1
	}
	if got != want {
		t.Errorf("%v, want %v", got, want)
	}
}
