package http1

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"
)

// errOver is for who writes after the handler has returned.
var errOver = errors.New("the handler has returned")

// An exchange is a request and its answer, and the http.ResponseWriter of that answer. Until the handler returns it is
// the handler's, one goroutine at a time; only the deadlines may be set by any.
//
// What the handler writes is kept in a page until there is more than fits, the handler flushes or has returned. It is
// sent then, and the head with the first of it.
type exchange struct {
	conn    *conn
	request *http.Request
	cancel  context.CancelFunc
	body    body

	header  http.Header
	status  int   // 0 until WriteHeader
	length  int64 // as declared; -1
	written int64
	fields  framing
	head    buffer // status line and fields, until they are sent
	kept    buffer // of the body, behind the lead

	duplex  bool  // the body may be read while the answer is written
	chunked bool  // the answer is
	closing bool  // the connection is closed behind the answer
	sent    bool  // the head is
	done    bool  // the handler has returned
	err     error // of all further writes
}

// A buffer is a page while it has something in it, or more if a head is that long.
type buffer struct {
	bytes []byte
	page  *page
}

func (b *buffer) begin(size int) {
	b.page = pages.Get().(*page)
	b.bytes = b.page[:size]
}

func (b *buffer) drop() {
	if b.page != nil {
		pages.Put(b.page)
		b.bytes, b.page = nil, nil
	}
}

// newExchange begins what r asks for.
func newExchange(c *conn, r *http.Request) *exchange {
	x := &exchange{conn: c, header: make(http.Header), length: -1, closing: r.Close}
	x.body.x = x
	r.Body = http.NoBody
	if r.ContentLength > 0 {
		x.body.left = r.ContentLength
		r.Body = &x.body
	}
	var ctx context.Context
	ctx, x.cancel = context.WithCancel(c.ctx)
	x.request = r.WithContext(ctx)
	return x
}

// SetReadDeadline bounds what waits for more of the request's body.
func (x *exchange) SetReadDeadline(t time.Time) error {
	x.conn.reads.set(t)
	return nil
}

// SetWriteDeadline bounds what waits for the client to take more of the answer.
func (x *exchange) SetWriteDeadline(t time.Time) error {
	x.conn.writes.set(t)
	return nil
}

// EnableFullDuplex leaves the request's body to be read while the answer is written.
func (x *exchange) EnableFullDuplex() error {
	x.duplex = true
	return nil
}

// Header is what the head of the answer is to have, until WriteHeader; after that only trailers are taken from it.
func (x *exchange) Header() http.Header { return x.header }

// WriteHeader fixes status and header. Informational ones are sent at once, and there may be any number of them.
func (x *exchange) WriteHeader(status int) {
	switch {
	case x.status != 0:
		x.logf("http: superfluous response.WriteHeader call with status %d", status)
		return
	case status < 100 || status > 999:
		panic("invalid WriteHeader code " + strconv.Itoa(status))
	case x.err != nil:
		return
	}
	x.head.begin(0)
	x.head.bytes = appendFields(appendStatus(x.head.bytes, status), x.header, status, &x.fields)
	if status < 200 && status != http.StatusSwitchingProtocols {
		head := appendField(x.head.bytes, "Connection", x.fields.connection)
		_ = x.fail(x.conn.write(append(head, crlf...)))
		x.head.drop()
		x.fields = framing{}
		return
	}
	x.status = status
	if declared := first(x.fields.length); declared != "" {
		if n, err := strconv.ParseUint(declared, 10, 63); err == nil {
			x.length = int64(n)
		} else {
			x.logf("http: invalid Content-Length of %q", declared)
		}
	}
}

// Write takes a part of the body. Its errors are net/http's, and those of the connection.
func (x *exchange) Write(p []byte) (int, error) {
	if x.status == 0 {
		x.WriteHeader(http.StatusOK)
	}
	switch {
	case x.err != nil || len(p) == 0:
		return 0, x.err
	case !hasBody(x.status):
		return 0, http.ErrBodyNotAllowed
	}
	x.written += int64(len(p))
	if x.length >= 0 && x.written > x.length {
		return 0, http.ErrContentLength
	}
	if x.keep(p) {
		return len(p), nil
	}
	if err := x.send(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// shortAnswer is how long an answer of undeclared length may be that is sent whole, with its length, when the handler has
// returned: net/http's bound.
const shortAnswer = 2 << 10

// keep puts p behind what is kept, if there is room.
func (x *exchange) keep(p []byte) bool {
	room := len(page{}) - lead - len(crlf) - len(lastChunk)
	if !x.sent && x.length < 0 {
		room = shortAnswer
	}
	if max(len(x.kept.bytes)-lead, 0)+len(p) > room {
		return false
	}
	if x.kept.page == nil {
		x.kept.begin(lead)
	}
	x.kept.bytes = append(x.kept.bytes, p...)
	return true
}

// Flush sends what has been written.
func (x *exchange) Flush() { _ = x.FlushError() }

// FlushError is Flush that tells whether it could.
func (x *exchange) FlushError() error {
	if x.status == 0 {
		x.WriteHeader(http.StatusOK)
	}
	if x.err != nil {
		return x.err
	}
	return x.send(nil)
}

// finish sends the rest when the handler has returned, and tells whether the connection may be used again.
func (x *exchange) finish() (again bool) {
	x.done = true
	x.cancel() // what follows may wait for the client
	if x.FlushError() != nil {
		return false
	}
	whole := x.body.drain()
	if short := x.length >= 0 && hasBody(x.status) && x.written != x.length; x.closing || short || !whole {
		if !whole {
			x.conn.linger()
		}
		return false
	}
	x.conn.reads.set(time.Time{})
	x.conn.writes.set(time.Time{})
	return true
}

// endsWithConnection reports whether the client can tell the end of the response, as far as it was
// sent, by the end of the connection alone.
func (x *exchange) endsWithConnection() bool {
	return x.sent && hasBody(x.status) && !x.chunked && x.length < 0
}

// end lets go of all that the exchange has.
func (x *exchange) end() {
	x.body.Close()
	x.head.drop()
	x.kept.drop()
	x.err = errOver
	if x.request.MultipartForm != nil {
		_ = x.request.MultipartForm.RemoveAll()
	}
}

// fail takes note of an error of the connection, if there is one. The client cannot be answered any more.
func (x *exchange) fail(err error) error {
	if err != nil {
		x.err = err
		x.cancel()
	}
	return err
}

func (x *exchange) logf(format string, args ...any) { x.conn.server.logf(format, args...) }
