package http1

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

const (
	crlf      = "\r\n"
	lastChunk = "0\r\n"
	// lead is the room before what is kept of a body, for the size of its chunk and CRLF.
	lead = 16 + len(crlf)
)

// send sends what is kept and p behind it, as one chunk if the answer is chunked, the head before it if that is due, and
// the end if the handler has returned. All of it is one write, and p is copied only if it fits into a page with the rest.
func (x *exchange) send(p []byte) error {
	kept := x.kept.bytes[min(len(x.kept.bytes), lead):]
	size := len(kept) + len(p)
	if x.sent && size == 0 && !(x.chunked && x.done) {
		return nil
	}
	defer x.kept.drop()
	out := kept
	switch {
	case !x.sent:
		x.sent = true
		x.seal(kept, p)
		defer x.head.drop()
		out = x.head.bytes
		if x.chunked && size > 0 {
			out = append(strconv.AppendInt(out, int64(size), 16), crlf...)
		}
		out = append(out, kept...)
	case x.chunked && size > 0:
		out = x.frame(size)
	case x.kept.page == nil:
		x.kept.begin(0)
		out = x.kept.bytes
	}
	return x.fail(x.write(out, p, x.ending(size)))
}

// frame writes the size of a chunk before what is kept of it.
func (x *exchange) frame(size int) []byte {
	if x.kept.page == nil {
		x.kept.begin(lead)
	}
	var room [16]byte
	digits := strconv.AppendInt(room[:0], int64(size), 16)
	begin := lead - len(crlf) - len(digits)
	copy(x.kept.bytes[begin:], digits)
	copy(x.kept.bytes[begin+len(digits):], crlf)
	return x.kept.bytes[begin:]
}

// ending is what follows a part of the body of this size.
func (x *exchange) ending(size int) string {
	switch {
	case !x.chunked:
		return ""
	case !x.done && size == 0:
		return ""
	case !x.done:
		return crlf
	}
	last := lastChunk + string(x.appendTrailers(nil)) + crlf
	if size > 0 {
		return crlf + last
	}
	return last
}

// write sends its three parts in one write.
func (x *exchange) write(out, p []byte, end string) error {
	if len(out)+len(p)+len(end) <= cap(out) {
		return x.conn.write(append(append(out, p...), end...))
	}
	return x.conn.writeParts(out, p, []byte(end))
}

// framing are the fields of a head that are decided when it is sent, as they were at WriteHeader.
type framing struct {
	length, coding, connection  []string
	lengthSet, typeSet, dateSet bool // even if to nothing
	encoded                     bool // there is a Content-Encoding
	trailers                    []string
	hasTrailers                 bool
}

// seal completes the head. kept and p are the first of the body, all of it if the handler has returned. It reads what is left of the
// request's body, for there are clients that read nothing before they have sent all of it.
func (x *exchange) seal(kept, p []byte) {
	f, head := &x.fields, x.head.bytes
	coding, size := first(f.coding), len(kept)+len(p)
	if x.done && !f.hasTrailers && coding == "" && hasBody(x.status) && !f.lengthSet {
		x.length = int64(size)
		head = strconv.AppendInt(append(head, "Content-Length: "...), x.length, 10)
		head = append(head, crlf...)
	}
	stopping := x.conn.server.stopping.Load()
	x.closing = x.closing || stopping || first(f.connection) == "close"
	if !x.closing && !x.duplex && !x.body.drain() {
		x.closing = true
	}
	if hasBody(x.status) && size > 0 && !f.typeSet && !f.encoded && coding == "" {
		head = appendField(head, "Content-Type", []string{sniff(kept, p)})
	}
	if !f.dateSet {
		head = appendField(head, "Date", []string{x.conn.server.date.now()})
	}
	known := x.length >= 0
	if known && coding != "" && coding != "identity" {
		x.logf("http: WriteHeader called with both Transfer-Encoding of %q and a Content-Length of %d", coding, x.length)
		known = false
	}
	head = x.appendFraming(head, known, coding)
	if x.closing && (stopping || !httpguts.HeaderValuesContainsToken(f.connection[:min(len(f.connection), 1)], "close")) {
		head = append(head, "Connection: close\r\n"...)
	} else {
		head = appendField(head, "Connection", f.connection)
	}
	x.head.bytes = append(head, crlf...)
}

// appendFraming decides how the end of the answer is told.
func (x *exchange) appendFraming(head []byte, known bool, coding string) []byte {
	switch {
	case !hasBody(x.status):
	case known:
		return appendField(head, "Content-Length", x.fields.length)
	case coding == "identity":
		x.closing = true
	default:
		x.chunked = true
		if coding != "" && coding != "chunked" {
			head = appendField(head, "Transfer-Encoding", x.fields.coding)
		}
		return append(head, "Transfer-Encoding: chunked\r\n"...)
	}
	return head
}

// sniff finds the type of a body by its beginning.
func sniff(kept, p []byte) string {
	if len(kept) == 0 {
		return http.DetectContentType(p)
	}
	return http.DetectContentType(slices.Concat(kept, p[:min(len(p), 512)]))
}

// appendTrailers appends the trailers, announced or not.
func (x *exchange) appendTrailers(out []byte) []byte {
	var trailers http.Header
	for name, values := range x.header {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			if trailers == nil {
				trailers = make(http.Header)
			}
			trailers[name] = values
		}
	}
	for _, name := range x.fields.trailers {
		if trailers == nil {
			trailers = make(http.Header)
		}
		trailers[name] = append(slices.Clip(trailers[name]), x.header[name]...)
	}
	for _, name := range slices.Sorted(maps.Keys(trailers)) {
		out = appendField(out, name, trailers[name])
	}
	return out
}
