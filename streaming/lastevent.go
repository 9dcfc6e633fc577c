package streaming

import (
	"bytes"
	"regexp"
)

// lastEvent finds the event by which Anthropic's Messages and OpenAI's Responses end their streams,
// as [DONE] ends the others. It takes the stream in pieces. An event of that kind counts only when it
// is whole: the empty line behind it has come.
type lastEvent struct {
	line    []byte // the beginning of the line under way
	afterCR bool   // the last byte was a CR
	isLast  bool   // the event under way is of that kind
	came    bool
}

// lineStart is how much of a line is looked at.
const lineStart = 64

// lastKind matches a line by which an event is the last one of its stream. Most servers tell it in
// the event's name; the type is the first key of the data where OpenAI and Anthropic write it.
var lastKind = regexp.MustCompile(`^(event: ?|data: ?\{ ?"type": ?")(message_stop|error|response\.(completed|failed|incomplete|cancelled))("|$)`)

// in reports whether the last event has come, now that p, the next bytes of the stream, has.
func (l *lastEvent) in(p []byte) bool {
	if len(p) == 0 || l.came {
		return l.came
	}
	if l.afterCR {
		p = bytes.TrimPrefix(p, []byte("\n"))
	}
	for line, ended := range lines(p) {
		room := lineStart - len(l.line)
		l.line = append(l.line, line[:min(room, len(line))]...)
		if !ended {
			break
		}
		switch {
		case len(l.line) > 0:
			l.isLast = l.isLast || lastKind.Match(l.line)
		case l.isLast:
			l.came = true
		}
		l.line = l.line[:0]
	}
	l.afterCR = len(p) > 0 && p[len(p)-1] == '\r'
	return l.came
}
