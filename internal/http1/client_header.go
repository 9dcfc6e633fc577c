package http1

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

const maxResponseHeader = 256 << 10 // of all heads before a body together

var (
	errVersion         = errors.New("it does not begin with HTTP/1")
	errStatus          = errors.New("its status line is malformed")
	errMalformedHeader = errors.New("its header is malformed")
	errHeaderTooLong   = errors.New("its header is too long")
	errTruncatedHeader = errors.New("it broke off within its header")
)

// An inbox is what was read from a connection and not taken yet.
type readBuffer struct {
	unread []byte
	page   *page // that rest lies in; nil if in none
}

func (b *readBuffer) releasePage() {
	b.unread = nil
	if b.page != nil {
		pages.Put(b.page)
		b.page = nil
	}
}

// fill reads once from r, and makes room first if there is none.
func (b *readBuffer) fillFrom(r io.Reader) (int, error) {
	switch {
	case b.page == nil && b.unread == nil:
		b.page = pages.Get().(*page)
		b.unread = b.page[:0]
	case len(b.unread) == cap(b.unread):
		larger := append(make([]byte, 0, 2*cap(b.unread)+len(page{})), b.unread...)
		b.releasePage()
		b.unread = larger
	}
	n, err := r.Read(b.unread[len(b.unread):cap(b.unread)])
	b.unread = b.unread[:len(b.unread)+n]
	return n, err
}

// readHead reads up to the first empty line, and returns all before it and it.
// Bytes that cannot become an answer are told at once: who sends them may be waiting.
func (x *roundTrip) readHeader(room int) (string, error) {
	for line := 0; ; {
		if version := "HTTP/1."; !strings.HasPrefix(version, string(x.unread[:min(len(x.unread), len(version))])) {
			return "", errVersion
		}
		var end int
		end, line = headerEnd(x.unread, line)
		if end > room || end == 0 && len(x.unread) >= room {
			return "", errHeaderTooLong
		}
		if end > 0 {
			head := string(x.unread[:end])
			x.unread = x.unread[end:]
			return head, nil
		}
		n, err := x.fillFrom(x.conn)
		if n > 0 {
			x.responseBegun = true
		} else if err == io.EOF && x.responseBegun {
			return "", errTruncatedHeader
		} else if err != nil {
			return "", err
		}
	}
}

// headEnd returns where the head in b ends, behind its first empty line; 0 if that has not come. line is where
// to begin, and then where to go on when there is more.
func headerEnd(b []byte, line int) (end, next int) {
	for {
		i := bytes.IndexByte(b[line:], '\n')
		if i < 0 {
			return 0, line
		}
		begin := line
		line += i + 1
		if i == 0 || i == 1 && b[begin] == '\r' {
			return line, line
		}
	}
}

// parseHead fills in what the head says, but for the framing.
func (x *roundTrip) parseHeader(head string) error {
	line, fields, _ := strings.Cut(head, "\n")
	proto, status, _ := strings.Cut(strings.TrimSuffix(line, "\r"), " ")
	status = strings.TrimLeft(status, " ")
	code, _, _ := strings.Cut(status, " ")
	if len(proto) != len("HTTP/1.1") || !isDigit(proto[len(proto)-1]) {
		return errVersion
	}
	if len(code) != 3 || code[0] == '0' || !isDigit(code[0]) || !isDigit(code[1]) || !isDigit(code[2]) {
		return errStatus
	}
	header, err := parseFields(fields)
	if err != nil {
		return err
	}
	r := &x.response
	r.Proto, r.ProtoMajor, r.ProtoMinor = proto, 1, int(proto[len(proto)-1]-'0')
	r.Status, r.Header = status, header
	r.StatusCode, _ = strconv.Atoi(code)
	return nil
}

func isDigit(b byte) bool { return '0' <= b && b <= '9' }

// parseFields parses header or trailer fields up to the empty line, which must be the last one. The values share
// one slice of memory.
func parseFields(s string) (http.Header, error) {
	lines := min(strings.Count(s, "\n"), 64) // a hint; a hostile head has more
	header, values := make(http.Header, lines), make([]string, 0, lines)
	for {
		line, rest, found := strings.Cut(s, "\n")
		s = rest
		line = strings.TrimSuffix(line, "\r")
		if line == "" && found && s == "" {
			return header, nil
		}
		name, value, ok := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		if !ok || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return nil, errMalformedHeader // also a folded line: its name would begin with a space
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		if have := header[name]; have != nil {
			header[name] = append(have, value)
			continue
		}
		values = append(values, value)
		header[name] = values[len(values)-1 : len(values) : len(values)]
	}
}
