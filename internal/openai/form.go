package openai

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/textproto"
	"strings"
)

// The errors of a multipart form. Their texts are sentences for the client.
var (
	ErrFormBoundary  = errors.New("The Content-Type of the form has no valid boundary; send it with the boundary of the form.")
	ErrFormMalformed = errors.New("The request body is not a whole multipart form; send all parts and the closing boundary.")
	ErrFormParts     = fmt.Errorf("The form has more than %d parts; send fewer.", maxParts)
)

const (
	// maxParts and maxPartHeader, in bytes, bound the cost of a form in addition to the length.
	maxParts      = 1000
	maxPartHeader = 8 << 10
	// maxBoundary is the limit of RFC 2046.
	maxBoundary = 70
)

// scanForm returns the fields of a multipart form. The content of files is only searched for the
// end of the part. Errors are those above and ErrDuplicateModel.
func scanForm(contentType string, body []byte) (Fields, error) {
	_, params, err := mime.ParseMediaType(contentType)
	boundary := params["boundary"]
	if err != nil || boundary == "" || len(boundary) > maxBoundary {
		return Fields{}, ErrFormBoundary
	}
	s := formScanner{body: body, delimiter: []byte("\r\n--" + boundary)}
	f := Fields{Form: true}
	parts := 0
	for more := s.firstPart(); more; more = s.nextPart() {
		if parts++; parts > maxParts {
			return Fields{}, ErrFormParts
		}
		name, at, ok := s.readPart()
		if !ok {
			return Fields{}, ErrFormMalformed
		}
		switch value := at.Of(body); name {
		case "model":
			if !f.ModelAt.Absent() {
				return Fields{}, ErrDuplicateModel
			}
			f.Model, f.ModelAt = value, at
		case "stream":
			f.Stream = strings.EqualFold(string(value), "true") || string(value) == "1"
		}
	}
	if !s.closed {
		return Fields{}, ErrFormMalformed
	}
	return f, nil
}

// A formScanner walks the parts of a multipart body (RFC 2046, section 5.1.1).
type formScanner struct {
	body      []byte
	delimiter []byte // including the line break before the boundary, which is not part of the content
	pos       int    // after the boundary of a delimiter, or before a delimiter
	closed    bool   // the closing delimiter was read
}

// firstPart moves to the first part, which must begin the body: clients write no preamble. It
// reports whether a part follows.
func (s *formScanner) firstPart() bool {
	first := s.delimiter[2:]
	if bytes.HasPrefix(s.body, s.delimiter) {
		first = s.delimiter
	}
	if !bytes.HasPrefix(s.body, first) {
		return false
	}
	s.pos = len(first)
	return s.endDelimiter()
}

// nextPart moves past the next delimiter and reports whether a part follows.
func (s *formScanner) nextPart() bool {
	if _, ok := s.findDelimiter(); !ok {
		return false
	}
	return s.endDelimiter()
}

// findDelimiter moves past the boundary of the next delimiter and returns the end of the preceding
// content.
func (s *formScanner) findDelimiter() (end int, ok bool) {
	for {
		i := bytes.Index(s.body[s.pos:], s.delimiter)
		if i < 0 {
			return 0, false
		}
		end = s.pos + i
		s.pos = end + len(s.delimiter)
		rest := bytes.TrimLeft(s.body[s.pos:], " \t")
		if bytes.HasPrefix(rest, []byte("\r\n")) || bytes.HasPrefix(s.body[s.pos:], []byte("--")) {
			return end, true
		}
	}
}

// endDelimiter reads the rest of a delimiter's line and reports whether a part follows: false after
// the closing delimiter and for a malformed line.
func (s *formScanner) endDelimiter() bool {
	rest := s.body[s.pos:]
	if bytes.HasPrefix(rest, []byte("--")) {
		s.closed = true
		return false
	}
	end := bytes.Index(rest, []byte("\r\n"))
	if end < 0 || len(bytes.Trim(rest[:end], " \t")) > 0 {
		return false
	}
	s.pos += end + 2
	return true
}

// readPart reads a part up to the next delimiter. It returns the name of the form field, "" for a
// file, and the content.
func (s *formScanner) readPart() (name string, content Span, ok bool) {
	header := s.body[s.pos:min(len(s.body), s.pos+maxPartHeader)]
	end := bytes.Index(header, []byte("\r\n\r\n")) + 4
	if bytes.HasPrefix(header, []byte("\r\n")) {
		end = 2 // no fields at all
	} else if end < 4 {
		return "", Span{}, false
	}
	name, ok = partFieldName(header[:end])
	s.pos += end
	start := s.pos
	s.pos -= 2 // empty content may share the line break at the end of the header
	stop, found := s.findDelimiter()
	if !ok || !found {
		return "", Span{}, false
	}
	s.pos = stop
	return name, Span{start, max(start, stop)}, true
}

// partFieldName returns the name of the form field from the header of a part; "" for a file. It
// reports false if the header is malformed.
func partFieldName(header []byte) (string, bool) {
	lines := bytes.Count(header, []byte("\r\n"))
	if bytes.Count(header, []byte("\r")) != lines || bytes.Count(header, []byte("\n")) != lines {
		return "", false // parsers disagree about the end of such a header
	}
	h, err := textproto.NewReader(bufio.NewReader(bytes.NewReader(header))).ReadMIMEHeader()
	if err != nil && err != io.EOF {
		return "", false
	}
	disposition, params, err := mime.ParseMediaType(h.Get("Content-Disposition"))
	if _, file := params["filename"]; err != nil || disposition != "form-data" || file {
		return "", true
	}
	return params["name"], true
}
