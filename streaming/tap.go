package streaming

import (
	"bytes"
	"time"
)

// Tap is what an answer told while it passed. It looks at bytes after they were written and never changes or delays them;
// nothing that an upstream server sends can break it. The zero value is ready for one answer; it may be read once Copy
// has returned.
//
// Events, failures and times are seen in event streams, usage in these and in JSON bodies. Compressed answers tell nothing.
type Tap struct {
	Events int  // events with data; the closing [DONE] is none
	Done   bool // "data: [DONE]" passed
	Failed bool // an error event passed, sent by the upstream server

	FirstContent time.Time      // when the first event with content had passed; zero if none has
	Gaps         InterTokenGaps // between the events with content

	counts      counts
	content     content
	lastContent time.Duration // since FirstContent

	hasData    bool   // the event under way has data
	hasContent bool   // and it has content
	inLine     bool   // the last bytes seen end within a line
	afterCR    bool   // the last byte seen is a CR
	tail       []byte // the last bytes of what comes in several pieces
}

// Usage is what the upstream server counted, as far as it has passed.
func (t *Tap) Usage() Usage { return t.counts.usage() }

// ContentEvents is how many events with content have passed. Where no usage was told, it is the best guess at the tokens.
func (t *Tap) ContentEvents() (n int) {
	if t.FirstContent.IsZero() {
		return 0
	}
	for _, count := range t.Gaps.Counts {
		n += int(count)
	}
	return n + 1
}

// GapBounds are the upper bounds of the gaps that are counted together; longer ones are counted last.
var GapBounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 15 * time.Millisecond,
	20 * time.Millisecond, 30 * time.Millisecond, 40 * time.Millisecond, 60 * time.Millisecond, 80 * time.Millisecond,
	120 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, time.Second, 3 * time.Second, 10 * time.Second,
}

// InterTokenGaps are the times between one event with content and the next. Those that pass in one write come at once.
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
	t.seeUsageInLines(p)
	came := 0
	for line, ended := range lines(p) {
		switch {
		case t.inLine: // its start has been seen
		case len(line) > 0:
			t.seeLine(line)
		case t.hasData:
			t.Events++
			if t.hasContent {
				came++
			}
			t.hasData, t.hasContent = false, false
		}
		t.inLine = !ended
	}
	t.passed(came)
}

// passed notes the time at which so many events with content passed together.
func (t *Tap) passed(events int) {
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

// seeLine takes in a line, or the start of one that is too long to be held.
func (t *Tap) seeLine(line []byte) {
	const field = "data:"
	if len(line) >= len(field) && string(line[:len(field)]) == field {
		data := trimSpace(line[len(field):])
		if len(data) > 0 && data[0] == '[' && string(bytes.TrimSpace(data)) == "[DONE]" {
			t.Done = true
			return
		}
		t.hasData = true
		t.hasContent = t.hasContent || t.content.in(data)
		t.Failed = t.Failed || isError(data)
		return
	}
	if event, ok := bytes.CutPrefix(line, []byte("event:")); ok && string(bytes.TrimSpace(event)) == "error" {
		t.Failed = true
	}
}

// isError tells an error object from a chunk by its first member, which all servers name or mark so. Some write
// "error":null into every chunk.
func isError(data []byte) bool {
	if len(data) == 0 || data[0] != '{' {
		return false
	}
	object := trimSpace(data[1:])
	if len(object) < 2 || object[0] != '"' || object[1] != 'e' && object[1] != 'o' && object[1] != 't' {
		return false // most chunks begin with their id
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

// seeUsageInLines takes in lines; the first may have begun before, and the last may go on.
func (t *Tap) seeUsageInLines(p []byte) {
	if len(t.tail) > 0 {
		end := bytes.IndexAny(p, "\r\n")
		if end < 0 {
			t.seeUsage(p, true)
			return
		}
		t.seeUsage(p[:end], false)
		p = p[end:]
	}
	whole := len(p)
	for whole > 0 && !lineEnd(p[whole-1]) {
		whole--
	}
	t.counts.see(p[:whole])
	if whole < len(p) {
		t.seeUsage(p[whole:], true)
	}
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
	t.counts.see(p)
	t.tail = t.tail[:0]
}

// keep appends p to the tail and forgets what is further than tailSize from the end.
func (t *Tap) keep(p []byte) {
	p = p[max(0, len(p)-tailSize):]
	old := t.tail[max(0, len(t.tail)+len(p)-tailSize):]
	t.tail = append(t.tail[:copy(t.tail, old)], p...)
}
