package streaming

import (
	"bytes"

	"github.com/tidwall/gjson"
)

// Tap is what an answer told while it passed. It looks at bytes after they were written and never changes or delays them;
// nothing that an upstream server sends can break it. The zero value is ready for one answer; it may be read once Copy
// has returned.
//
// Events and failures are seen in event streams, usage in these and in JSON bodies. Compressed answers tell nothing.
type Tap struct {
	Events int   // events with data; the closing [DONE] is none
	Done   bool  // "data: [DONE]" passed
	Failed bool  // an error event passed, sent by the upstream server
	Usage  Usage // the last one that passed; usage may be cumulative, so earlier ones are not added up

	hasData bool   // the event under way has data
	inLine  bool   // the last bytes seen end within a line
	afterCR bool   // the last byte seen is a CR
	tail    []byte // the last bytes of what comes in several pieces
}

// Usage counts tokens as the upstream server reported them. Zero means nothing was reported.
type Usage struct {
	PromptTokens     int64
	CompletionTokens int64
	TotalTokens      int64
	CachedTokens     int64 // the part of PromptTokens that the prefix cache served
}

// tailSize bounds how far from its end the usage may stand in a body, or in a line of a stream, that comes in pieces.
const tailSize = 4 << 10

// see takes in p, the next bytes of an answer of that media type; of an event stream, whole events unless they are too
// long to be held. more tells that the body goes on.
func (t *Tap) see(mediaType string, p []byte, more bool) {
	switch {
	case t == nil:
	case mediaType == eventStream:
		t.seeLines(p)
	case mediaType == jsonBody:
		t.seeUsage(p, more)
	}
}

func (t *Tap) seeLines(p []byte) {
	if len(p) == 0 {
		return
	}
	startsInCRLF := t.afterCR && p[0] == '\n'
	t.afterCR = p[len(p)-1] == '\r'
	if startsInCRLF {
		p = p[1:]
	}
	for line, ended := range lines(p) {
		switch {
		case t.inLine: // its start has been seen
		case len(line) > 0:
			t.seeLine(line)
		case t.hasData:
			t.Events++
			t.hasData = false
		}
		t.seeUsage(line, !ended)
		t.inLine = !ended
	}
}

// seeLine takes in a line, or the start of one that is too long to be held.
func (t *Tap) seeLine(line []byte) {
	if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
		if string(bytes.TrimSpace(data)) == "[DONE]" {
			t.Done = true
			return
		}
		t.hasData = true
		t.Failed = t.Failed || isError(data)
		return
	}
	if event, ok := bytes.CutPrefix(line, []byte("event:")); ok && string(bytes.TrimSpace(event)) == "error" {
		t.Failed = true
	}
}

// isError tells an error object from a chunk. Some servers write "error":null into every chunk.
func isError(data []byte) bool {
	return bytes.Contains(data, []byte(`"error"`)) && gjson.GetBytes(data, "error").IsObject()
}

// seeUsage takes in a piece of JSON text; more tells that the text goes on in the next call.
func (t *Tap) seeUsage(p []byte, more bool) {
	if more || len(t.tail) > 0 {
		t.keep(p)
		p = t.tail
	}
	if more {
		return
	}
	if u, ok := lastUsage(p); ok {
		t.Usage = u
	}
	t.tail = t.tail[:0]
}

// keep appends p to the tail and forgets what is further than tailSize from the end.
func (t *Tap) keep(p []byte) {
	p = p[max(0, len(p)-tailSize):]
	old := t.tail[max(0, len(t.tail)+len(p)-tailSize):]
	t.tail = append(t.tail[:copy(t.tail, old)], p...)
}

// lastUsage finds the last usage object in JSON text, at whatever depth, without parsing the rest: inside a JSON string
// a quote is always escaped, so that the bytes "usage" with both quotes and a colon behind them can only be a key.
func lastUsage(p []byte) (last Usage, found bool) {
	key := []byte(`"usage"`)
	for {
		i := bytes.Index(p, key)
		if i < 0 {
			return last, found
		}
		p = p[i+len(key):]
		object, ok := bytes.CutPrefix(trimSpace(p), []byte(":"))
		if object = trimSpace(object); !ok || len(object) == 0 || object[0] != '{' {
			continue
		}
		if u, ok := parseUsage(object); ok {
			last, found = u, true
		}
	}
}

func trimSpace(p []byte) []byte { return bytes.TrimLeft(p, " \t\r\n") }

// parseUsage reads the usage object that p starts with, under the names of chat and completions or those of responses.
func parseUsage(p []byte) (Usage, bool) {
	prompt, completion, cached := "prompt_tokens", "completion_tokens", "prompt_tokens_details.cached_tokens"
	if !gjson.GetBytes(p, prompt).Exists() {
		prompt, completion, cached = "input_tokens", "output_tokens", "input_tokens_details.cached_tokens"
	}
	if gjson.GetBytes(p, prompt).Type != gjson.Number {
		return Usage{}, false
	}
	count := func(path string) int64 { return max(0, gjson.GetBytes(p, path).Int()) }
	return Usage{
		PromptTokens:     count(prompt),
		CompletionTokens: count(completion),
		TotalTokens:      count("total_tokens"),
		CachedTokens:     count(cached),
	}, true
}
