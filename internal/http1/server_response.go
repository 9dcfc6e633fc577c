package http1

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"
)

// errHandlerReturned is the error of a write after the handler has returned.
var errHandlerReturned = errors.New("the handler has returned")

// A responseWriter is a request and the http.ResponseWriter of the response. Until the handler
// returns a responseWriter belongs to the handler, one goroutine at a time, and then to the
// goroutine of the connection. Any goroutine may set deadlines and call cancel at any time.
//
// Written bytes are kept in a page until the page is full, or the handler flushes or returns. The
// header is sent with the first bytes, so a short response is one write. Write and Flush block
// while the client does not read, up to the write deadline.
type responseWriter struct {
	conn    *serverConn
	request *http.Request
	ctx     Context // of the request
	body    requestBody

	header        http.Header
	status        int   // 0 until WriteHeader
	contentLength int64 // as declared by the handler, or -1
	written       int64 // bytes of the body, pending ones included
	framing       framingFields
	headerBuf     pageBuffer // status line and fields, until they are sent
	pending       pageBuffer // chunkPrefix bytes, and then the unsent part of the body

	fullDuplex  bool // the request's body stays readable after the response header
	chunked     bool // the response is in chunked coding
	closeAfter  bool // the connection is closed after the response
	headerSent  bool
	handlerDone bool  // the handler has returned
	err         error // of all further writes
}

// A pageBuffer holds unsent bytes, in a page, or in larger memory for a large header. An empty
// pageBuffer holds no memory.
type pageBuffer struct {
	bytes []byte
	page  *page
}

// takePage takes a page from the pool. The first size bytes of the page become the content.
func (b *pageBuffer) takePage(size int) {
	b.page = pages.Get().(*page)
	b.bytes = b.page[:size]
}

// dropPage discards the bytes and returns the page to the pool.
func (b *pageBuffer) dropPage() {
	if b.page != nil {
		pages.Put(b.page)
		b.bytes, b.page = nil, nil
	}
}

// newResponseWriter returns the writer of the response to r, and sets context and body of r.
func newResponseWriter(c *serverConn, r *http.Request) *responseWriter {
	w := &responseWriter{conn: c, header: make(http.Header), contentLength: -1, closeAfter: r.Close}
	w.body.w = w
	r.Body = http.NoBody
	if r.ContentLength > 0 {
		w.body.remaining = r.ContentLength
		r.Body = &w.body
	}
	w.ctx.Start(c.ctx)
	w.request = r.WithContext(&w.ctx)
	return w
}

// cancel ends the context of the request. Any goroutine may call cancel, more than once.
func (w *responseWriter) cancel() { w.ctx.Cancel(context.Canceled) }

// SetReadDeadline ends a read of the request's body still waiting at t or later. Any goroutine may
// call SetReadDeadline.
func (w *responseWriter) SetReadDeadline(t time.Time) error {
	w.conn.readDeadline.setTime(t)
	return nil
}

// SetWriteDeadline ends a write still waiting for the client at t or later. Any goroutine may call
// SetWriteDeadline.
func (w *responseWriter) SetWriteDeadline(t time.Time) error {
	w.conn.writeDeadline.setTime(t)
	return nil
}

// EnableFullDuplex keeps the request's body readable after the response header was sent. It has no
// effect once the header has been sent.
func (w *responseWriter) EnableFullDuplex() error {
	w.fullDuplex = true
	return nil
}

// Header returns the header to be sent by WriteHeader. After WriteHeader only trailers are taken
// from the header.
func (w *responseWriter) Header() http.Header { return w.header }

// WriteHeader fixes status and header. Informational headers are sent at once, any number of them;
// WriteHeader blocks for these like Write. A call after the final status is logged and ignored.
func (w *responseWriter) WriteHeader(status int) {
	switch {
	case w.status != 0:
		w.logf("http: superfluous response.WriteHeader call with status %d", status)
		return
	case status < 100 || status > 999:
		panic("invalid WriteHeader code " + strconv.Itoa(status))
	case w.err != nil:
		return
	}
	w.headerBuf.takePage(0)
	w.headerBuf.bytes = appendHeader(appendStatusLine(w.headerBuf.bytes, status), w.header, status, &w.framing)
	if status < 200 && status != http.StatusSwitchingProtocols {
		header := appendFieldLines(w.headerBuf.bytes, "Connection", w.framing.connection)
		_ = w.setError(w.conn.writeRaw(append(header, crlf...)))
		w.headerBuf.dropPage()
		w.framing = framingFields{}
		return
	}
	w.status = status
	if declared := firstValue(w.framing.contentLength); declared != "" {
		if n, err := strconv.ParseUint(declared, 10, 63); err == nil {
			w.contentLength = int64(n)
		} else {
			w.logf("http: invalid Content-Length of %q", declared)
		}
	}
}

// Write writes a part of the body. The errors are those of net/http and of the connection. p is not
// kept after the return.
func (w *responseWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.err != nil || len(p) == 0:
		return 0, w.err
	case !bodyAllowed(w.status):
		return 0, http.ErrBodyNotAllowed
	}
	w.written += int64(len(p))
	if w.contentLength >= 0 && w.written > w.contentLength {
		return 0, http.ErrContentLength
	}
	if w.appendPending(p) {
		return len(p), nil
	}
	if err := w.sendPending(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// maxUnsized bounds a body of undeclared length sent with a Content-Length after the handler has
// returned: net/http's bound.
const maxUnsized = 2 << 10

// appendPending appends p to the pending bytes. Without room the result is false and nothing is
// appended.
func (w *responseWriter) appendPending(p []byte) bool {
	room := len(page{}) - chunkPrefix - len(crlf) - len(lastChunk)
	if !w.headerSent && w.contentLength < 0 {
		room = maxUnsized
	}
	if max(len(w.pending.bytes)-chunkPrefix, 0)+len(p) > room {
		return false
	}
	if w.pending.page == nil {
		w.pending.takePage(chunkPrefix)
	}
	w.pending.bytes = append(w.pending.bytes, p...)
	return true
}

// Flush sends the pending bytes.
func (w *responseWriter) Flush() { _ = w.FlushError() }

// FlushError sends the pending bytes and returns the error of the connection.
func (w *responseWriter) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.err != nil {
		return w.err
	}
	return w.sendPending(nil)
}

// finishResponse sends the rest of the response after the handler has returned, and reports whether
// the connection can be reused. finishResponse blocks for the client: to send the rest, to drain
// the body, or to linger. Called once, in the goroutine of the connection.
func (w *responseWriter) finishResponse() (reusable bool) {
	w.handlerDone = true
	w.cancel() // the rest may wait for the client
	if w.FlushError() != nil {
		return false
	}
	drained := w.body.drainBody()
	truncated := w.contentLength >= 0 && bodyAllowed(w.status) && w.written != w.contentLength
	if w.closeAfter || truncated || !drained {
		if !drained {
			w.conn.lingeringClose()
		}
		return false
	}
	w.conn.readDeadline.setTime(time.Time{})
	w.conn.writeDeadline.setTime(time.Time{})
	return true
}

// closeDelimited reports whether the response has begun and only the end of the connection marks
// its end.
func (w *responseWriter) closeDelimited() bool {
	return w.headerSent && bodyAllowed(w.status) && !w.chunked && w.contentLength < 0
}

// cleanUp releases everything that belongs to the request. Later writes fail. Closing the body
// waits for a read in progress, so a connection that is not reused is closed before.
func (w *responseWriter) cleanUp() {
	w.body.Close()
	w.headerBuf.dropPage()
	w.pending.dropPage()
	w.err = errHandlerReturned
	if w.request.MultipartForm != nil {
		_ = w.request.MultipartForm.RemoveAll()
	}
}

// setError records err, an error of the connection, unless nil, and cancels the request, because
// the response cannot be completed. The result is err.
func (w *responseWriter) setError(err error) error {
	if err != nil {
		w.err = err
		w.cancel()
	}
	return err
}

func (w *responseWriter) logf(format string, args ...any) { w.conn.server.logf(format, args...) }
