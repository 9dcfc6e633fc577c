package streaming

import (
	"bytes"
	"time"

	"berth/internal/openai"
)

// A Tap observes a response during Copy. It reads any bytes, after they have been written, and
// never changes or delays them. The zero value is ready for one response. Only Copy may use a Tap
// until Copy has returned; then the caller may read the results.
//
// Events, failures and times are those of event streams; usage is read from these and from JSON
// bodies. Of a compressed response nothing is observed.
type Tap struct {
	Events int  // events with data, without the closing [DONE]
	Done   bool // "data: [DONE]" was relayed
	Failed bool // an error event of the upstream was relayed

	// Aborted: the upstream did not complete the response, see openai.Aborted. In a stream only
	// events without content are read for this, and of a JSON body in several pieces the last one.
	// A JSON body in one piece is left to Relay.Check.
	Aborted bool

	FirstContent time.Time      // when the first event with content was written; or zero
	Gaps         InterTokenGaps // between the events with content

	counts      usageCounts
	content     contentDetector
	lastContent time.Duration // since FirstContent

	hasData    bool   // the current event has data
	hasContent bool   // the current event has content
	inLine     bool   // the last bytes end within a line
	afterCR    bool   // the last byte is a CR
	tail       []byte // the last bytes of a JSON text arriving in several pieces
}

// Usage returns the usage reported by the upstream so far.
func (t *Tap) Usage() Usage { return t.counts.usage() }

// ContentEvents returns the number of events with content, which is the best estimate of the tokens
// if the upstream reports no usage.
func (t *Tap) ContentEvents() (n int) {
	if t.FirstContent.IsZero() {
		return 0
	}
	for _, count := range t.Gaps.Counts {
		n += int(count)
	}
	return n + 1
}

// GapBounds are the inclusive upper bounds of the buckets of InterTokenGaps; the last bucket has
// none.
var GapBounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 15 * time.Millisecond,
	20 * time.Millisecond, 30 * time.Millisecond, 40 * time.Millisecond, 60 * time.Millisecond, 80 * time.Millisecond,
	120 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, time.Second, 3 * time.Second, 10 * time.Second,
}

// InterTokenGaps is a histogram of the times between consecutive events with content. The gap
// between events relayed in one write is zero.
type InterTokenGaps struct {
	Counts [len(GapBounds) + 1]uint32
	Sum    time.Duration
}

func (g *InterTokenGaps) add(d time.Duration) {
	i := 0
	for i < len(GapBounds) && d > GapBounds[i] {
		i++
	}
	g.Counts[i]++
	g.Sum += d
}

// tailSize is the number of bytes at the end of a JSON body, or of a long line, in which usage is
// found if the body or line arrives in pieces.
const tailSize = 4 << 10

// observe reads p, the next bytes of a response of a media type. Those of an event stream are whole
// events, unless an event is longer than a buffer. more says whether the body continues. A nil Tap
// observes nothing.
func (t *Tap) observe(mediaType string, p []byte, more bool) {
	switch {
	case t == nil:
	case mediaType == eventStream:
		t.observeLines(p)
	case mediaType == jsonBody:
		t.observeUsage(p, more)
	}
}

// observeLines reads bytes of an event stream.
func (t *Tap) observeLines(p []byte) {
	if len(p) == 0 {
		return
	}
	startsInCRLF := t.afterCR && p[0] == '\n'
	t.afterCR = p[len(p)-1] == '\r'
	if startsInCRLF {
		p = p[1:]
	}
	t.observeUsageInLines(p)
	contentEvents := 0
	for line, ended := range lines(p) {
		switch {
		case t.inLine: // the rest of a line, after its observed start
		case len(line) > 0:
			t.observeLine(line)
		case t.hasData:
			t.Events++
			if t.hasContent {
				contentEvents++
			}
			t.hasData, t.hasContent = false, false
		}
		t.inLine = !ended
	}
	t.countContent(contentEvents)
}

// countContent records the time of events with content written together.
func (t *Tap) countContent(events int) {
	if events == 0 {
		return
	}
	if t.FirstContent.IsZero() {
		t.FirstContent = time.Now()
	} else {
		now := time.Since(t.FirstContent)
		t.Gaps.add(now - t.lastContent)
		t.lastContent = now
	}
	t.Gaps.Counts[0] += uint32(events - 1)
}

// observeLine reads a line, or the start of a line longer than a buffer.
func (t *Tap) observeLine(line []byte) {
	const field = "data:"
	if len(line) >= len(field) && string(line[:len(field)]) == field {
		data := trimSpace(line[len(field):])
		if len(data) > 0 && data[0] == '[' && string(bytes.TrimSpace(data)) == "[DONE]" {
			t.Done = true
			return
		}
		t.hasData = true
		if t.content.hasContent(data) {
			t.hasContent = true
		} else {
			t.Aborted = t.Aborted || openai.Aborted(data)
		}
		t.Failed = t.Failed || isError(data)
		return
	}
	if event, ok := bytes.CutPrefix(line, []byte("event:")); ok && string(bytes.TrimSpace(event)) == "error" {
		t.Failed = true
	}
}

// isError reports whether data is an error object and not a chunk. All servers put the
// distinguishing key first; some write "error":null into every chunk.
func isError(data []byte) bool {
	if len(data) == 0 || data[0] != '{' {
		return false
	}
	object := trimSpace(data[1:])
	if len(object) < 2 || object[0] != '"' || object[1] != 'e' && object[1] != 'o' && object[1] != 't' {
		return false // most chunks start with their id
	}
	object = object[1:]
	name := stringAt(object)
	value, ok := valueOf(object[min(len(name)+1, len(object)):])
	switch string(name) {
	case "error":
		return ok && (value[0] == '{' || value[0] == '"')
	case "object", "type":
		return ok && bytes.HasPrefix(value, []byte(`"error"`))
	}
	return false
}

// observeUsageInLines reads usage from lines. The first may continue a line, and the last may be
// continued.
func (t *Tap) observeUsageInLines(p []byte) {
	if len(t.tail) > 0 {
		end := bytes.IndexAny(p, "\r\n")
		if end < 0 {
			t.observeUsage(p, true)
			return
		}
		t.observeUsage(p[:end], false)
		p = p[end:]
	}
	whole := len(p)
	for whole > 0 && !isLineEnd(p[whole-1]) {
		whole--
	}
	t.counts.scan(p[:whole])
	if whole < len(p) {
		t.observeUsage(p[whole:], true)
	}
}

// observeUsage reads usage from a piece of JSON text. more says whether the next call continues the
// text.
func (t *Tap) observeUsage(p []byte, more bool) {
	pieces := more || len(t.tail) > 0
	if pieces {
		t.appendTail(p)
		p = t.tail
	}
	if more {
		return
	}
	t.Aborted = t.Aborted || pieces && openai.Aborted(p)
	t.counts.scan(p)
	t.tail = t.tail[:0]
}

// appendTail appends p to the tail and keeps the last tailSize bytes.
func (t *Tap) appendTail(p []byte) {
	p = p[max(0, len(p)-tailSize):]
	old := t.tail[max(0, len(t.tail)+len(p)-tailSize):]
	t.tail = append(t.tail[:copy(t.tail, old)], p...)
}
