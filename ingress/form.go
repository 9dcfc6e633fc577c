package ingress

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/textproto"
	"strings"
)

// What is wrong with a form, in sentences for the client.
var (
	errFormBoundary = errors.New("The Content-Type of the form has no valid boundary.")
	errFormBroken   = errors.New("The request body is not a whole multipart form.")
	errFormParts    = fmt.Errorf("The form has more than %d parts.", maxParts)
)

const (
	formType = "multipart/form-data"
	// maxParts and maxPartHead bound what a form costs beyond its length.
	maxParts    = 1000
	maxPartHead = 8 << 10
)

// isForm tells whether a Content-Type announces a form with files, as for audio and images.
func isForm(contentType string) bool {
	mediaType, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(mediaType), formType)
}

// scanBody finds the payload of a body whose Content-Type was accepted, and hashes its prompt into h unless that is nil.
func scanBody(header http.Header, body []byte, h *promptHasher) (payload, error) {
	if contentType := header.Get("Content-Type"); isForm(contentType) {
		return scanForm(contentType, body)
	}
	return scanPayload(body, h)
}

// scanForm finds the payload of a multipart form: its fields model and stream. What files hold is only searched for the end of
// the part. Errors are those above and errDuplicateModel.
func scanForm(contentType string, body []byte) (payload, error) {
	_, params, err := mime.ParseMediaType(contentType)
	boundary := params["boundary"]
	if err != nil || boundary == "" || len(boundary) > 70 {
		return payload{}, errFormBoundary
	}
	f := form{body: body, delimiter: []byte("\r\n--" + boundary)}
	p := payload{form: true}
	parts := 0
	for more := f.begin(); more; more = f.next() {
		if parts++; parts > maxParts {
			return payload{}, errFormParts
		}
		name, at, ok := f.part()
		if !ok {
			return payload{}, errFormBroken
		}
		switch value := at.of(body); name {
		case "model":
			if !p.modelAt.absent() {
				return payload{}, errDuplicateModel
			}
			p.model, p.modelAt = value, at
		case "stream":
			p.stream = strings.EqualFold(string(value), "true") || string(value) == "1"
		}
	}
	if !f.closed {
		return payload{}, errFormBroken
	}
	return p, nil
}

// form walks the parts of a multipart body (RFC 2046, section 5.1.1).
type form struct {
	body      []byte
	delimiter []byte // with the line end before it, which is no content
	pos       int    // behind a delimiter's name, or behind the head of a part
	closed    bool   // the closing delimiter was read
}

// begin goes to the first part, which must stand at the start: no client writes a preamble.
func (f *form) begin() bool {
	first := f.delimiter[2:]
	if bytes.HasPrefix(f.body, f.delimiter) {
		first = f.delimiter
	}
	if !bytes.HasPrefix(f.body, first) {
		return false
	}
	f.pos = len(first)
	return f.line()
}

// next goes on behind the next delimiter, false if no part follows.
func (f *form) next() bool {
	if _, ok := f.end(); !ok {
		return false
	}
	return f.line()
}

// end finds the next delimiter and returns where the content before it ends.
func (f *form) end() (at int, ok bool) {
	for {
		i := bytes.Index(f.body[f.pos:], f.delimiter)
		if i < 0 {
			return 0, false
		}
		at = f.pos + i
		f.pos = at + len(f.delimiter)
		rest := bytes.TrimLeft(f.body[f.pos:], " \t")
		if bytes.HasPrefix(rest, []byte("\r\n")) || bytes.HasPrefix(f.body[f.pos:], []byte("--")) {
			return at, true
		}
	}
}

// line reads the rest of a delimiter's line: false behind the last part.
func (f *form) line() bool {
	rest := f.body[f.pos:]
	if bytes.HasPrefix(rest, []byte("--")) {
		f.closed = true
		return false
	}
	end := bytes.Index(rest, []byte("\r\n"))
	if end < 0 || len(bytes.Trim(rest[:end], " \t")) > 0 {
		return false
	}
	f.pos += end + 2
	return true
}

// part reads a part's head and returns the name of its field, empty for a file, and where its content lies. It stands before
// the delimiter then.
func (f *form) part() (name string, at span, ok bool) {
	head := f.body[f.pos:min(len(f.body), f.pos+maxPartHead)]
	end := bytes.Index(head, []byte("\r\n\r\n")) + 4
	if bytes.HasPrefix(head, []byte("\r\n")) {
		end = 2 // no fields at all
	} else if end < 4 {
		return "", span{}, false
	}
	name, ok = fieldName(head[:end])
	f.pos += end
	content := f.pos
	f.pos -= 2 // an empty content may end with the line end of the head
	stop, found := f.end()
	if !ok || !found {
		return "", span{}, false
	}
	f.pos = stop
	return name, span{content, max(content, stop)}, true
}

// fieldName is the name of the form field that a part's head tells; empty if it is a file, or none.
func fieldName(head []byte) (string, bool) {
	lines := bytes.Count(head, []byte("\r\n"))
	if bytes.Count(head, []byte("\r")) != lines || bytes.Count(head, []byte("\n")) != lines {
		return "", false // where it ends is read in more than one way
	}
	h, err := textproto.NewReader(bufio.NewReader(bytes.NewReader(head))).ReadMIMEHeader()
	if err != nil && err != io.EOF {
		return "", false
	}
	disposition, params, err := mime.ParseMediaType(h.Get("Content-Disposition"))
	if _, file := params["filename"]; err != nil || disposition != "form-data" || file {
		return "", true
	}
	return params["name"], true
}
