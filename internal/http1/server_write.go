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
	chunkPrefix = 16 + len(crlf)
)

// send sends what is kept and p behind it, as one chunk if the answer is chunked, the head before it if that is due, and
// the end if the handler has returned. All of it is one write, and p is copied only if it fits into a page with the rest.
func (x *responseWriter) sendPending(p []byte) error {
	kept := x.pending.bytes[min(len(x.pending.bytes), chunkPrefix):]
	size := len(kept) + len(p)
	if x.headerSent && size == 0 && !(x.chunked && x.handlerDone) {
		return nil
	}
	defer x.pending.release()
	out := kept
	switch {
	case !x.headerSent:
		x.headerSent = true
		x.finishHeader(kept, p)
		defer x.headerBuf.release()
		out = x.headerBuf.bytes
		if x.chunked && size > 0 {
			out = append(strconv.AppendInt(out, int64(size), 16), crlf...)
		}
		out = append(out, kept...)
	case x.chunked && size > 0:
		out = x.prependChunkSize(size)
	case x.pending.page == nil:
		x.pending.acquire(0)
		out = x.pending.bytes
	}
	return x.setError(x.writeParts(out, p, x.chunkEnd(size)))
}

// frame writes the size of a chunk before what is kept of it.
func (x *responseWriter) prependChunkSize(size int) []byte {
	if x.pending.page == nil {
		x.pending.acquire(chunkPrefix)
	}
	var room [16]byte
	digits := strconv.AppendInt(room[:0], int64(size), 16)
	begin := chunkPrefix - len(crlf) - len(digits)
	copy(x.pending.bytes[begin:], digits)
	copy(x.pending.bytes[begin+len(digits):], crlf)
	return x.pending.bytes[begin:]
}

// ending is what follows a part of the body of this size.
func (x *responseWriter) chunkEnd(size int) string {
	switch {
	case !x.chunked:
		return ""
	case !x.handlerDone && size == 0:
		return ""
	case !x.handlerDone:
		return crlf
	}
	last := lastChunk + string(x.appendTrailers(nil)) + crlf
	if size > 0 {
		return crlf + last
	}
	return last
}

// write sends its three parts in one write.
func (x *responseWriter) writeParts(out, p []byte, end string) error {
	if len(out)+len(p)+len(end) <= cap(out) {
		return x.conn.writeRaw(append(append(out, p...), end...))
	}
	return x.conn.writeVector(out, p, []byte(end))
}

// framing are the fields of a head that are decided when it is sent, as they were at WriteHeader.
type framingFields struct {
	contentLength, transferEncoding, connection []string
	hasContentLength, hasContentType, hasDate   bool // even if to nothing
	hasContentEncoding                          bool // there is a Content-Encoding
	trailers                                    []string
	hasTrailers                                 bool
}

// seal completes the head. kept and p are the first of the body, all of it if the handler has returned. It reads what is left of the
// request's body, for there are clients that read nothing before they have sent all of it.
func (x *responseWriter) finishHeader(kept, p []byte) {
	f, head := &x.framing, x.headerBuf.bytes
	coding, size := firstValue(f.transferEncoding), len(kept)+len(p)
	if x.handlerDone && !f.hasTrailers && coding == "" && bodyAllowed(x.status) && !f.hasContentLength {
		x.contentLength = int64(size)
		head = strconv.AppendInt(append(head, "Content-Length: "...), x.contentLength, 10)
		head = append(head, crlf...)
	}
	stopping := x.conn.server.stopping.Load()
	x.closeAfter = x.closeAfter || stopping || firstValue(f.connection) == "close"
	if !x.closeAfter && !x.fullDuplex && !x.body.drain() {
		x.closeAfter = true
	}
	if bodyAllowed(x.status) && size > 0 && !f.hasContentType && !f.hasContentEncoding && coding == "" {
		head = appendFieldLines(head, "Content-Type", []string{sniffContentType(kept, p)})
	}
	if !f.hasDate {
		head = appendFieldLines(head, "Date", []string{x.conn.server.date.now()})
	}
	known := x.contentLength >= 0
	if known && coding != "" && coding != "identity" {
		x.logf("http: WriteHeader called with both Transfer-Encoding of %q and a Content-Length of %d", coding, x.contentLength)
		known = false
	}
	head = x.appendFraming(head, known, coding)
	if x.closeAfter && (stopping || !httpguts.HeaderValuesContainsToken(f.connection[:min(len(f.connection), 1)], "close")) {
		head = append(head, "Connection: close\r\n"...)
	} else {
		head = appendFieldLines(head, "Connection", f.connection)
	}
	x.headerBuf.bytes = append(head, crlf...)
}

// appendFraming decides how the end of the answer is told.
func (x *responseWriter) appendFraming(head []byte, known bool, coding string) []byte {
	switch {
	case !bodyAllowed(x.status):
	case known:
		return appendFieldLines(head, "Content-Length", x.framing.contentLength)
	case coding == "identity":
		x.closeAfter = true
	default:
		x.chunked = true
		if coding != "" && coding != "chunked" {
			head = appendFieldLines(head, "Transfer-Encoding", x.framing.transferEncoding)
		}
		return append(head, "Transfer-Encoding: chunked\r\n"...)
	}
	return head
}

// sniff finds the type of a body by its beginning.
func sniffContentType(kept, p []byte) string {
	if len(kept) == 0 {
		return http.DetectContentType(p)
	}
	return http.DetectContentType(slices.Concat(kept, p[:min(len(p), 512)]))
}

// appendTrailers appends the trailers, announced or not.
func (x *responseWriter) appendTrailers(out []byte) []byte {
	var trailers http.Header
	for name, values := range x.header {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			if trailers == nil {
				trailers = make(http.Header)
			}
			trailers[name] = values
		}
	}
	for _, name := range x.framing.trailers {
		if trailers == nil {
			trailers = make(http.Header)
		}
		trailers[name] = append(slices.Clip(trailers[name]), x.header[name]...)
	}
	for _, name := range slices.Sorted(maps.Keys(trailers)) {
		out = appendFieldLines(out, name, trailers[name])
	}
	return out
}
