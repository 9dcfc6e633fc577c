package http1

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"berth/internal/tcp"
)

// A roundTrip is one request, its response on a connection, and the body of the response. The round
// trip owns the connection until it is done:
//
//	open → done   by the last byte read, or by Close
//
// The transition is one CAS on done, and the goroutine that wins it releases the connection. The
// methods are for one goroutine at a time; only Close may be called by any goroutine, at any time.
// After an error of Read, only Close releases the connection.
type roundTrip struct {
	response http.Response   // the caller's, once Do has returned
	ctx      context.Context // of the request
	atEnd    listener        // calls halfClose at the end of ctx
	conn     *clientConn
	pool     *connPool
	start    time.Time
	done     atomic.Bool

	readBuffer
	responseBegun bool // at least one byte of a response has been read
	reusable      bool // the connection may be reused after the response
	sendTimedOut  bool // the server stopped reading the request

	framing   bodyFraming
	remaining int64 // of the body, with framingLength
	chunks    chunkDecoder
	err       error // of all further reads
}

// newRoundTrip begins a round trip, the new owner of c. From now on the end of the request's
// context half-closes c, in a separate goroutine.
func newRoundTrip(req *http.Request, c *clientConn, p *connPool) *roundTrip {
	rt := &roundTrip{ctx: req.Context(), conn: c, pool: p, start: time.Now()}
	rt.response.Request = req
	rt.atEnd.f = c.onCancel
	rt.atEnd.watch(rt.ctx)
	return rt
}

// errRequestBody is the error of a request with a failing or too short body.
var errRequestBody = errors.New("the request's body could not be read to its end")

// sendRequest writes b, the header, and then the request's body. It blocks while the server does
// not read, up to the send timeout. If the server responds or closes the connection before the end
// of the request, sendRequest stops without an error: the response is still to be read.
//
// The part of the body fitting into b's capacity is sent with the header in one write. The whole of
// a longer body is, without copying, if the body is a Sender.
func (rt *roundTrip) sendRequest(b []byte) error {
	body, left := rt.response.Request.Body, rt.response.Request.ContentLength
	if s, ok := body.(Sender); ok && left > int64(cap(b)-len(b)) {
		return rt.sendFrom(s, b, left)
	}
	for {
		for left > 0 && len(b) < cap(b) {
			n, err := body.Read(b[len(b):min(int64(cap(b)), int64(len(b))+left)])
			b, left = b[:len(b)+n], left-int64(n)
			if err != nil && left > 0 {
				return errRequestBody
			}
		}
		if !rt.writeBuffers(b, nil, left == 0) {
			return nil
		}
		if left == 0 {
			rt.reusable = true
			return nil
		}
		b = b[:0]
	}
}

// sendFrom writes the header and then the body, without copying. SendTo is called in this
// goroutine.
func (rt *roundTrip) sendFrom(body Sender, header []byte, left int64) error {
	u := uploadWriter{rt: rt, pending: header, remaining: left}
	if err := body.SendTo(&u); err != nil && err != errUploadStopped || err == nil && u.remaining > 0 {
		return errRequestBody
	}
	rt.reusable = u.remaining == 0 && !u.stopped
	return nil
}

// writeBuffers writes all of p and then of rest. It returns false if the upload must stop: the
// response, or the end of the connection, is to be read now, or the send timeout has passed.
func (rt *roundTrip) writeBuffers(p, rest []byte, last bool) bool {
	early, err := rt.conn.writeRequest(p, rest)
	rt.sendTimedOut = err == tcp.ErrSendTimeout
	return err == nil && !early && (last || rt.conn.noPendingData())
}

// receiveResponse reads the response up to the end of the header, and blocks until then or until
// the end of the context. After an error the connection has been released.
func (rt *roundTrip) receiveResponse() error {
	err := rt.readResponse()
	if rt.ctx.Err() != nil {
		err = rt.ctx.Err() // some servers respond after a disconnect
	}
	if err != nil {
		return rt.failWith(err)
	}
	rt.conn.finishUpload()
	if len(rt.unread) == 0 {
		rt.releasePage() // the body may take long to arrive
	}
	rt.response.Body = rt
	if rt.framing == framingNone {
		rt.response.Body = http.NoBody
		rt.endBody(io.EOF)
	}
	return nil
}

// failWith ends the round trip before the response and returns the error for the caller: the cause
// of the context's end, or else an *Error. failWith blocks as Close does.
func (rt *roundTrip) failWith(err error) error {
	defer rt.Close()
	rt.releasePage()
	if rt.ctx.Err() != nil {
		return context.Cause(rt.ctx)
	}
	return &Error{Connected: true, Reused: rt.conn.reused, ResponseBegun: rt.responseBegun, Start: rt.start, Err: err}
}

// endBody records the end of reading with err and returns the error for the reader. After io.EOF,
// the end of the body, the round trip is done, unless Close was first; after any other error the
// connection stays half-open until Close.
func (rt *roundTrip) endBody(err error) error {
	if err == io.EOF && rt.done.CompareAndSwap(false, true) {
		alive := rt.atEnd.stop(rt.ctx) // else the end of the context is half-closing the connection
		if alive && rt.reusable && len(rt.unread) == 0 {
			rt.pool.putConn(rt.conn)
		} else {
			rt.conn.Close()
		}
		rt.releasePage()
		return err
	}
	rt.releasePage()
	if rt.done.Load() {
		return http.ErrBodyReadAfterClose
	}
	if rt.ctx.Err() != nil {
		return context.Cause(rt.ctx)
	}
	return err
}

// Close ends the round trip. Before the end of the body Close half-closes the connection, to make
// the server abort the response, and blocks until the server has released the request, as far as
// observable: until the server has closed the other half, or for 250 ms. The caller holds the slot
// until then. A second call, or one after the end of the body, returns at once and does not wait
// for the first. Memory possibly used by a concurrent Read is left to this Read.
func (rt *roundTrip) Close() error {
	if rt.done.CompareAndSwap(false, true) {
		rt.atEnd.stop(rt.ctx)
		rt.conn.lingeringClose()
	}
	return nil
}
