package streaming

import (
	"bytes"
	"iter"
)

// eventEnds finds the ends of events in a byte stream arriving in pieces. The state is the last two
// bytes of the stream, since an event ends with an empty line, and the byte before an LF, CR or
// CRLF decides whether the line is empty. Line ends may be mixed and split over pieces.
//
// A CR ending an empty line ends the event at once. If an LF follows, the event ends again behind
// the LF, so no event waits for a byte that may never arrive.
type eventEnds [2]byte

// newEventEnds returns the state before the first byte of a stream, where an empty line may follow.
func newEventEnds() eventEnds { return eventEnds{'\n', '\n'} }

// lastEnd reads p, the next bytes of the stream, and returns the offset in p behind the last whole
// event, 0 if no event ends in p. The search runs backwards, since most reads end on an event
// boundary.
func (e *eventEnds) lastEnd(p []byte) (end int) {
	for i := len(p) - 1; i >= 0; i-- {
		if isLineEnd(p[i]) && e.emptyLine(p, i) {
			end = i + 1
			break
		}
	}
	*e = eventEnds{e.at(p, len(p)-2), e.at(p, len(p)-1)}
	return end
}

// emptyLine reports whether the line before the line end at i is empty.
func (e *eventEnds) emptyLine(p []byte, i int) bool {
	before := e.at(p, i-1)
	if p[i] == '\n' && before == '\r' {
		before = e.at(p, i-2)
	}
	return isLineEnd(before)
}

// at returns the byte of the stream at index i of p; -1 and -2 are the last bytes before p.
func (e *eventEnds) at(p []byte, i int) byte {
	if i < 0 {
		return e[len(e)+i]
	}
	return p[i]
}

func isLineEnd(c byte) bool { return c == '\n' || c == '\r' }

// lines yields the lines of p without their line ends, and whether each has one: the last may not.
func lines(p []byte) iter.Seq2[[]byte, bool] {
	return func(yield func(line []byte, ended bool) bool) {
		cr := bytes.IndexByte(p, '\r') >= 0 // most streams have none
		lf := -1                            // the next LF not before start, searched once for all CRs in between
		for start := 0; start < len(p); {
			if lf < start {
				lf = indexFrom(p, start, '\n')
			}
			end := lf
			if cr {
				end = start + indexFrom(p[start:lf], 0, '\r')
			}
			if !yield(p[start:end], end < len(p)) {
				return
			}
			start = end + 1
			if end == lf-1 && lf < len(p) {
				start = lf + 1 // CRLF
			}
		}
	}
}

// indexFrom returns the index of the first c in p not before start, len(p) if there is none.
func indexFrom(p []byte, start int, c byte) int {
	if i := bytes.IndexByte(p[start:], c); i >= 0 {
		return start + i
	}
	return len(p)
}

// hasDone reports whether p has the line "data: [DONE]", which ends an OpenAI stream.
func hasDone(p []byte) bool {
	i := bytes.LastIndex(p, []byte("[DONE]"))
	if i < 0 {
		return false
	}
	if end := i + len("[DONE]"); end < len(p) && !isLineEnd(p[end]) {
		return false
	}
	field := bytes.TrimSuffix(p[:i], []byte(" "))
	line := bytes.TrimSuffix(field, []byte("data:"))
	return len(line) < len(field) && (len(line) == 0 || isLineEnd(line[len(line)-1]))
}
