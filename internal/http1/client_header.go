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

// maxResponseHeader bounds the header of a response, together with all preceding interim headers.
const maxResponseHeader = 256 << 10

var (
	errVersion         = errors.New("it does not begin with HTTP/1")
	errStatus          = errors.New("its status line is malformed")
	errMalformedHeader = errors.New("its header is malformed")
	errHeaderTooLong   = errors.New("its header is too long")
	errTruncatedHeader = errors.New("it broke off within its header")
)

// readHeader reads up to the first empty line and returns the header with this line; further bytes
// stay unread. Bytes that cannot begin a response are reported at once, since the sender may be
// waiting.
func (rt *roundTrip) readHeader(limit int) (string, error) {
	for line := 0; ; {
		if version := "HTTP/1."; !strings.HasPrefix(version, string(rt.unread[:min(len(rt.unread), len(version))])) {
			return "", errVersion
		}
		var end int
		end, line = headerEnd(rt.unread, line)
		if end > limit || end == 0 && len(rt.unread) >= limit {
			return "", errHeaderTooLong
		}
		if end > 0 {
			header := string(rt.unread[:end])
			rt.unread = rt.unread[end:]
			return header, nil
		}
		n, err := rt.fillFrom(rt.conn)
		if n > 0 {
			rt.responseBegun = true
		} else if err == io.EOF && rt.responseBegun {
			return "", errTruncatedHeader
		} else if err != nil {
			return "", err
		}
	}
}

// fillFrom reads once from r into a page, or into larger memory if the page is full. May block in
// r.Read.
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

// headerEnd returns the end of the header in b, after the first empty line, or 0 without an empty
// line. The search begins at line; next is the position to continue from with more bytes.
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

// parseHeader sets status, version and header of the response, without the framing.
func (rt *roundTrip) parseHeader(s string) error {
	line, fields, _ := strings.Cut(s, "\n")
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
	r := &rt.response
	r.Proto, r.ProtoMajor, r.ProtoMinor = proto, 1, int(proto[len(proto)-1]-'0')
	r.Status, r.Header = status, header
	r.StatusCode, _ = strconv.Atoi(code)
	return nil
}

func isDigit(b byte) bool { return '0' <= b && b <= '9' }

// parseFields parses header or trailer fields up to the empty line, which must be the last line of
// s.
func parseFields(s string) (http.Header, error) {
	b := newHeaderBuilder(min(strings.Count(s, "\n"), 64)) // bounded, since the header may be hostile
	for {
		line, rest, found := strings.Cut(s, "\n")
		s = rest
		line = strings.TrimSuffix(line, "\r")
		if line == "" && found && s == "" {
			return b.header, nil
		}
		name, value, ok := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		if !ok || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return nil, errMalformedHeader // also a folded line, with a space in the name
		}
		b.addField(textproto.CanonicalMIMEHeaderKey(name), value)
	}
}
