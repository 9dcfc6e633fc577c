package streaming

import (
	"bytes"
	"regexp"
)

// A lastEventDetector finds the terminal event of Anthropic's Messages and OpenAI's Responses, the
// counterpart of [DONE] in the other APIs. The stream arrives in pieces of any size. A terminal
// event counts once complete, with its empty line.
type lastEventDetector struct {
	line     []byte // the start of the current line
	afterCR  bool   // the last byte was a CR
	terminal bool   // the current event is a terminal one
	complete bool   // a terminal event is complete
}

// linePrefix is the number of bytes matched per line.
const linePrefix = 64

// terminalLine matches a line of a terminal event: the event's name, or the type in the data, which
// OpenAI and Anthropic send as the first key.
var terminalLine = regexp.MustCompile(`^(event: ?|data: ?\{ ?"type": ?")(message_stop|error|response\.(completed|failed|incomplete|cancelled))("|$)`)

// observe reads p, the next bytes of the stream, and reports whether a terminal event has been
// completed so far.
func (l *lastEventDetector) observe(p []byte) bool {
	if len(p) == 0 || l.complete {
		return l.complete
	}
	if l.afterCR {
		p = bytes.TrimPrefix(p, []byte("\n"))
	}
	for line, ended := range lines(p) {
		room := linePrefix - len(l.line)
		l.line = append(l.line, line[:min(room, len(line))]...)
		if !ended {
			break
		}
		switch {
		case len(l.line) > 0:
			l.terminal = l.terminal || terminalLine.Match(l.line)
		case l.terminal:
			l.complete = true
		}
		l.line = l.line[:0]
	}
	l.afterCR = len(p) > 0 && p[len(p)-1] == '\r'
	return l.complete
}
