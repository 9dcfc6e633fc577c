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
	lastChunk = "0\r\n"
	// chunkPrefix is the room before the pending bytes for the size of their chunk and a CRLF.
	chunkPrefix = 16 + len(crlf)
)

// sendPending sends the header if not yet sent, the pending bytes and p, as one chunk if the
// response is chunked, and the end of the body if the handler has returned. All of this is one
// write. p is copied only if there is room for p in the same page.
func (w *responseWriter) sendPending(p []byte) error {
	pending := w.pending.bytes[min(len(w.pending.bytes), chunkPrefix):]
	size := len(pending) + len(p)
	if w.headerSent && size == 0 && !(w.chunked && w.handlerDone) {
		return nil
	}
	defer w.pending.dropPage()
	out := pending
	switch {
	case !w.headerSent:
		w.headerSent = true
		w.finishHeader(pending, p)
		defer w.headerBuf.dropPage()
		out = w.headerBuf.bytes
		if w.chunked && size > 0 {
			out = append(strconv.AppendInt(out, int64(size), 16), crlf...)
		}
		out = append(out, pending...)
	case w.chunked && size > 0:
		out = w.prependChunkSize(size)
	case w.pending.page == nil:
		w.pending.takePage(0)
		out = w.pending.bytes
	}
	return w.setError(w.writeParts(out, p, w.bodyEnd(size)))
}

// prependChunkSize writes the size of a chunk into the room before the pending bytes and returns
// the chunk, beginning with the size.
func (w *responseWriter) prependChunkSize(size int) []byte {
	if w.pending.page == nil {
		w.pending.takePage(chunkPrefix)
	}
	var buf [16]byte
	digits := strconv.AppendInt(buf[:0], int64(size), 16)
	begin := chunkPrefix - len(crlf) - len(digits)
	copy(w.pending.bytes[begin:], digits)
	copy(w.pending.bytes[begin+len(digits):], crlf)
	return w.pending.bytes[begin:]
}

// bodyEnd returns the framing after size bytes of the body: the end of the chunk, and after the
// last byte the last chunk and the trailers.
func (w *responseWriter) bodyEnd(size int) string {
	switch {
	case !w.chunked:
		return ""
	case !w.handlerDone && size == 0:
		return ""
	case !w.handlerDone:
		return crlf
	}
	last := lastChunk + string(w.appendTrailers(nil)) + crlf
	if size > 0 {
		return crlf + last
	}
	return last
}

// writeParts writes the three parts in one system call.
func (w *responseWriter) writeParts(out, p []byte, end string) error {
	if len(out)+len(p)+len(end) <= cap(out) {
		return w.conn.writeRaw(append(append(out, p...), end...))
	}
	return w.conn.writeVector(out, p, []byte(end))
}

// framingFields are the header fields decided at the sending of the header, with their values at
// WriteHeader.
type framingFields struct {
	contentLength, transferEncoding, connection []string

	hasContentLength, hasContentType, hasDate bool // even if empty
	hasContentEncoding                        bool // and not empty
	hasTrailers                               bool
	trailers                                  []string // names announced by the handler
}

// finishHeader completes the header. pending and p are the beginning of the body, or all of it if
// the handler has returned. The request's body is drained first, which may block, because some
// clients read nothing before they have sent all of the body.
func (w *responseWriter) finishHeader(pending, p []byte) {
	f, header := &w.framing, w.headerBuf.bytes
	coding, size := firstValue(f.transferEncoding), len(pending)+len(p)
	if w.handlerDone && !f.hasTrailers && coding == "" && bodyAllowed(w.status) && !f.hasContentLength {
		w.contentLength = int64(size)
		header = strconv.AppendInt(append(header, "Content-Length: "...), w.contentLength, 10)
		header = append(header, crlf...)
	}
	stopping := w.conn.server.stopping.Load()
	w.closeAfter = w.closeAfter || stopping || firstValue(f.connection) == "close"
	if !w.closeAfter && !w.fullDuplex && !w.body.drainBody() {
		w.closeAfter = true
	}
	if bodyAllowed(w.status) && size > 0 && !f.hasContentType && !f.hasContentEncoding && coding == "" {
		header = appendFieldLine(header, "Content-Type", sniffContentType(pending, p))
	}
	if !f.hasDate {
		header = appendFieldLine(header, "Date", w.conn.server.date.currentDate())
	}
	sized := w.contentLength >= 0
	if sized && coding != "" && coding != "identity" {
		w.logf("http: WriteHeader called with both Transfer-Encoding of %q and a Content-Length of %d", coding, w.contentLength)
		sized = false
	}
	header = w.appendFraming(header, sized, coding)
	if w.closeAfter && (stopping || !httpguts.HeaderValuesContainsToken(f.connection[:min(len(f.connection), 1)], "close")) {
		header = appendFieldLine(header, "Connection", "close")
	} else {
		header = appendFieldLines(header, "Connection", f.connection)
	}
	w.headerBuf.bytes = append(header, crlf...)
}

// appendFraming decides how the end of the body is marked and appends the corresponding field.
func (w *responseWriter) appendFraming(header []byte, sized bool, coding string) []byte {
	switch {
	case !bodyAllowed(w.status):
	case sized:
		return appendFieldLines(header, "Content-Length", w.framing.contentLength)
	case coding == "identity":
		w.closeAfter = true
	default:
		w.chunked = true
		if coding != "" && coding != "chunked" {
			header = appendFieldLines(header, "Transfer-Encoding", w.framing.transferEncoding)
		}
		return appendFieldLine(header, "Transfer-Encoding", "chunked")
	}
	return header
}

// sniffContentType returns the content type of a body by the first bytes.
func sniffContentType(pending, p []byte) string {
	if len(pending) == 0 {
		return http.DetectContentType(p)
	}
	return http.DetectContentType(slices.Concat(pending, p[:min(len(p), 512)]))
}

// appendTrailers appends the trailers, announced or not.
func (w *responseWriter) appendTrailers(out []byte) []byte {
	var trailers http.Header
	for name, values := range w.header {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			if trailers == nil {
				trailers = make(http.Header)
			}
			trailers[name] = values
		}
	}
	for _, name := range w.framing.trailers {
		if trailers == nil {
			trailers = make(http.Header)
		}
		trailers[name] = append(slices.Clip(trailers[name]), w.header[name]...)
	}
	for _, name := range slices.Sorted(maps.Keys(trailers)) {
		out = appendFieldLines(out, name, trailers[name])
	}
	return out
}
