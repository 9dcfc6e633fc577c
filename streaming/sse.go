package streaming

import (
	"bytes"
	"iter"
)

// eventEnds finds where events end in a byte stream that comes in pieces. It is the stream's last two bytes so far;
// nothing older matters: an event ends with an empty line, and whether the line that ends here is empty is decided by
// the byte before its LF, CR or CRLF. Line ends may be mixed and split over pieces.
//
// A CR that ends an empty line ends the event at once. If its LF follows, the event ends again behind that: nobody has
// to wait for a byte that may never come.
type eventEnds [2]byte

// newEventEnds stands before the first byte of a stream: an empty line may come at once.
func newEventEnds() eventEnds { return eventEnds{'\n', '\n'} }

// last takes in p, the next bytes of the stream, and returns where in p its last whole event ends, 0 if none ends there.
// It searches backwards, since most reads end where an event does.
func (e *eventEnds) last(p []byte) (end int) {
	for i := len(p) - 1; i >= 0; i-- {
		if lineEnd(p[i]) && e.emptyLine(p, i) {
			end = i + 1
			break
		}
	}
	*e = eventEnds{e.at(p, len(p)-2), e.at(p, len(p)-1)}
	return end
}

// emptyLine tells whether the line that the line end at i closes is empty.
func (e *eventEnds) emptyLine(p []byte, i int) bool {
	before := e.at(p, i-1)
	if p[i] == '\n' && before == '\r' {
		before = e.at(p, i-2)
	}
	return lineEnd(before)
}

// at returns the stream's byte at index i of p; -1 and -2 are the last bytes before p.
func (e *eventEnds) at(p []byte, i int) byte {
	if i < 0 {
		return e[len(e)+i]
	}
	return p[i]
}

func lineEnd(c byte) bool { return c == '\n' || c == '\r' }

// lines yields the lines of p without their ends; the last one may lack its end, then ended is false.
func lines(p []byte) iter.Seq2[[]byte, bool] {
	return func(yield func(line []byte, ended bool) bool) {
		cr := bytes.IndexByte(p, '\r') >= 0 // in most streams there is none
		lf := -1                            // the next LF not before start, searched once for all CRs before it
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

// indexFrom returns where c next stands in p, not before start; len(p) if nowhere.
func indexFrom(p []byte, start int, c byte) int {
	if i := bytes.IndexByte(p[start:], c); i >= 0 {
		return start + i
	}
	return len(p)
}

// hasDone tells whether p holds the line that closes an OpenAI stream.
func hasDone(p []byte) bool {
	i := bytes.LastIndex(p, []byte("[DONE]"))
	if i < 0 {
		return false
	}
	if end := i + len("[DONE]"); end < len(p) && !lineEnd(p[end]) {
		return false
	}
	field := bytes.TrimSuffix(p[:i], []byte(" "))
	line := bytes.TrimSuffix(field, []byte("data:"))
	return len(line) < len(field) && (len(line) == 0 || lineEnd(line[len(line)-1]))
}
