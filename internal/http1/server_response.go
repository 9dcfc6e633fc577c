package http1

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"
)

// errOver is for who writes after the handler has returned.
var errHandlerReturned = errors.New("the handler has returned")

// An exchange is a request and its answer, and the http.ResponseWriter of that answer. Until the handler returns it is
// the handler's, one goroutine at a time; only the deadlines may be set by any.
//
// What the handler writes is kept in a page until there is more than fits, the handler flushes or has returned. It is
// sent then, and the head with the first of it.
type responseWriter struct {
	conn    *serverConn
	request *http.Request
	cancel  context.CancelFunc
	body    requestBody

	header        http.Header
	status        int   // 0 until WriteHeader
	contentLength int64 // as declared; -1
	written       int64
	framing       framingFields
	headerBuf     pageBuffer // status line and fields, until they are sent
	pending       pageBuffer // of the body, behind the lead

	fullDuplex  bool  // the body may be read while the answer is written
	chunked     bool  // the answer is
	closeAfter  bool  // the connection is closed behind the answer
	headerSent  bool  // the head is
	handlerDone bool  // the handler has returned
	err         error // of all further writes
}

// A buffer is a page while it has something in it, or more if a head is that long.
type pageBuffer struct {
	bytes []byte
	page  *page
}

func (b *pageBuffer) acquire(size int) {
	b.page = pages.Get().(*page)
	b.bytes = b.page[:size]
}

func (b *pageBuffer) release() {
	if b.page != nil {
		pages.Put(b.page)
		b.bytes, b.page = nil, nil
	}
}

// newExchange begins what r asks for.
func newResponseWriter(c *serverConn, r *http.Request) *responseWriter {
	x := &responseWriter{conn: c, header: make(http.Header), contentLength: -1, closeAfter: r.Close}
	x.body.w = x
	r.Body = http.NoBody
	if r.ContentLength > 0 {
		x.body.remaining = r.ContentLength
		r.Body = &x.body
	}
	var ctx context.Context
	ctx, x.cancel = context.WithCancel(c.ctx)
	x.request = r.WithContext(ctx)
	return x
}

// SetReadDeadline bounds what waits for more of the request's body.
func (x *responseWriter) SetReadDeadline(t time.Time) error {
	x.conn.readDeadline.set(t)
	return nil
}

// SetWriteDeadline bounds what waits for the client to take more of the answer.
func (x *responseWriter) SetWriteDeadline(t time.Time) error {
	x.conn.writeDeadline.set(t)
	return nil
}

// EnableFullDuplex leaves the request's body to be read while the answer is written.
func (x *responseWriter) EnableFullDuplex() error {
	x.fullDuplex = true
	return nil
}

// Header is what the head of the answer is to have, until WriteHeader; after that only trailers are taken from it.
func (x *responseWriter) Header() http.Header { return x.header }

// WriteHeader fixes status and header. Informational ones are sent at once, and there may be any number of them.
func (x *responseWriter) WriteHeader(status int) {
	switch {
	case x.status != 0:
		x.logf("http: superfluous response.WriteHeader call with status %d", status)
		return
	case status < 100 || status > 999:
		panic("invalid WriteHeader code " + strconv.Itoa(status))
	case x.err != nil:
		return
	}
	x.headerBuf.acquire(0)
	x.headerBuf.bytes = appendHeader(appendStatusLine(x.headerBuf.bytes, status), x.header, status, &x.framing)
	if status < 200 && status != http.StatusSwitchingProtocols {
		head := appendFieldLines(x.headerBuf.bytes, "Connection", x.framing.connection)
		_ = x.setError(x.conn.writeRaw(append(head, crlf...)))
		x.headerBuf.release()
		x.framing = framingFields{}
		return
	}
	x.status = status
	if declared := firstValue(x.framing.contentLength); declared != "" {
		if n, err := strconv.ParseUint(declared, 10, 63); err == nil {
			x.contentLength = int64(n)
		} else {
			x.logf("http: invalid Content-Length of %q", declared)
		}
	}
}

// Write takes a part of the body. Its errors are net/http's, and those of the connection.
func (x *responseWriter) Write(p []byte) (int, error) {
	if x.status == 0 {
		x.WriteHeader(http.StatusOK)
	}
	switch {
	case x.err != nil || len(p) == 0:
		return 0, x.err
	case !bodyAllowed(x.status):
		return 0, http.ErrBodyNotAllowed
	}
	x.written += int64(len(p))
	if x.contentLength >= 0 && x.written > x.contentLength {
		return 0, http.ErrContentLength
	}
	if x.bufferPending(p) {
		return len(p), nil
	}
	if err := x.sendPending(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// shortAnswer is how long an answer of undeclared length may be that is sent whole, with its length, when the handler has
// returned: net/http's bound.
const maxUnsized = 2 << 10

// keep puts p behind what is kept, if there is room.
func (x *responseWriter) bufferPending(p []byte) bool {
	room := len(page{}) - chunkPrefix - len(crlf) - len(lastChunk)
	if !x.headerSent && x.contentLength < 0 {
		room = maxUnsized
	}
	if max(len(x.pending.bytes)-chunkPrefix, 0)+len(p) > room {
		return false
	}
	if x.pending.page == nil {
		x.pending.acquire(chunkPrefix)
	}
	x.pending.bytes = append(x.pending.bytes, p...)
	return true
}

// Flush sends what has been written.
func (x *responseWriter) Flush() { _ = x.FlushError() }

// FlushError is Flush that tells whether it could.
func (x *responseWriter) FlushError() error {
	if x.status == 0 {
		x.WriteHeader(http.StatusOK)
	}
	if x.err != nil {
		return x.err
	}
	return x.sendPending(nil)
}

// finish sends the rest when the handler has returned, and tells whether the connection may be used again.
func (x *responseWriter) finishResponse() (again bool) {
	x.handlerDone = true
	x.cancel() // what follows may wait for the client
	if x.FlushError() != nil {
		return false
	}
	whole := x.body.drain()
	if short := x.contentLength >= 0 && bodyAllowed(x.status) && x.written != x.contentLength; x.closeAfter || short || !whole {
		if !whole {
			x.conn.lingeringClose()
		}
		return false
	}
	x.conn.readDeadline.set(time.Time{})
	x.conn.writeDeadline.set(time.Time{})
	return true
}

// endsWithConnection reports whether the client can tell the end of the response, as far as it was
// sent, by the end of the connection alone.
func (x *responseWriter) closeDelimited() bool {
	return x.headerSent && bodyAllowed(x.status) && !x.chunked && x.contentLength < 0
}

// end lets go of all that the exchange has.
func (x *responseWriter) release() {
	x.body.Close()
	x.headerBuf.release()
	x.pending.release()
	x.err = errHandlerReturned
	if x.request.MultipartForm != nil {
		_ = x.request.MultipartForm.RemoveAll()
	}
}

// fail takes note of an error of the connection, if there is one. The client cannot be answered any more.
func (x *responseWriter) setError(err error) error {
	if err != nil {
		x.err = err
		x.cancel()
	}
	return err
}

func (x *responseWriter) logf(format string, args ...any) { x.conn.server.logf(format, args...) }
