package http1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"berth/internal/tcp"
	"berth/llmserver"
)

// An exchange is one request and its answer on a connection, and the body of
// that answer. It owns the connection until it ends:
//
//	open → ended   by the last byte read, or Close
//
// The edge is one CAS, and who wins it lets go of the connection. All but Close is
// for one goroutine at a time. After an error of Read only Close ends it.
type roundTrip struct {
	response   http.Response   // the caller's, once Do has returned
	ctx        context.Context // the request's
	conn       *clientConn
	pool       *connPool
	start      time.Time
	stopCancel func() bool // that the context's end hangs up
	done       atomic.Bool

	readBuffer
	responseBegun bool // some byte of an answer has come
	reusable      bool // the connection may be used again after the end of the answer
	sendTimedOut  bool // the replica stopped reading the request

	framing   bodyFraming
	remaining int64 // of the body, if its length is known
	chunks    chunkDecoder
	err       error // of all further reads
}

func newRoundTrip(req *http.Request, c *clientConn, p *connPool) *roundTrip {
	ctx := req.Context()
	x := &roundTrip{ctx: ctx, conn: c, pool: p, start: time.Now(), stopCancel: context.AfterFunc(ctx, c.onCancel)}
	x.response.Request = req
	return x
}

// errBody is what the caller does wrong whose request is shorter than it said.
var errRequestBody = errors.New("the request's body could not be read to its end")

// send writes the head and the body behind it. It stops without an error when
// the replica answers, or hangs up, before it has all: what it says is still to be read.
//
// What fits the page with the head goes out in one write, and so does, from where it lies, a longer body that is a Sender.
func (x *roundTrip) sendRequest(b []byte) error {
	body, left := x.response.Request.Body, x.response.Request.ContentLength
	if s, ok := body.(Sender); ok && left > int64(cap(b)-len(b)) {
		return x.sendFrom(s, b, left)
	}
	for {
		for left > 0 && len(b) < cap(b) {
			n, err := body.Read(b[len(b):min(int64(cap(b)), int64(len(b))+left)])
			b, left = b[:len(b)+n], left-int64(n)
			if err != nil && left > 0 {
				return errRequestBody
			}
		}
		if !x.writeBuffers(b, nil, left == 0) {
			return nil
		}
		if left == 0 {
			x.reusable = true
			return nil
		}
		b = b[:0]
	}
}

// sendAll writes all of p and of what is behind it; false if what the replica says, or its end, is to be read now, or it is
// late.
func (x *roundTrip) writeBuffers(p, behind []byte, last bool) bool {
	early, err := x.conn.writeRequest(p, behind)
	x.sendTimedOut = err == tcp.ErrSendTimeout
	return err == nil && !early && (last || x.conn.noPendingData())
}

// Sender is a request body in memory. SendTo writes what has not been read of it, as an io.WriterTo would; but it may
// hold a lock meanwhile that Close waits for, which net/http's transport could not bear.
type Sender interface{ SendTo(w io.Writer) error }

// sendFrom has the body write itself behind the head.
func (x *roundTrip) sendFrom(body Sender, head []byte, left int64) error {
	u := uploadWriter{rt: x, pending: head, remaining: left}
	if err := body.SendTo(&u); err != nil && err != errUploadStopped || err == nil && u.remaining > 0 {
		return errRequestBody
	}
	x.reusable = u.remaining == 0 && !u.stopped
	return nil
}

// errStopped ends an upload that the replica does not want to its end.
var errUploadStopped = errors.New("the replica has answered or hung up")

// An upload is where a body writes itself. It takes no more than it is to have.
type uploadWriter struct {
	rt        *roundTrip
	pending   []byte // the head, and what is short behind it: they go out with what comes next
	remaining int64
	stopped   bool
}

// stretch is how much is sent between two looks whether the replica has answered.
const uploadChunk = 1 << 20

func (u *uploadWriter) Write(p []byte) (n int, err error) {
	p = p[:min(int64(len(p)), u.remaining)]
	if len(u.pending)+len(p) <= singleWriteMax && int64(len(p)) < u.remaining {
		u.pending, u.remaining = append(u.pending, p...), u.remaining-int64(len(p))
		return len(p), nil
	}
	for piece := range slices.Chunk(p, uploadChunk) {
		n, u.remaining = n+len(piece), u.remaining-int64(len(piece))
		if u.stopped = !u.rt.writeBuffers(u.pending, piece, u.remaining == 0); u.stopped {
			return n, errUploadStopped
		}
		u.pending = nil
	}
	return n, nil
}

// answer reads up to the end of the answer's head. After an error nothing is left of the exchange.
func (x *roundTrip) receive() error {
	err := x.readResponse()
	if x.ctx.Err() != nil {
		err = x.ctx.Err() // some servers answer when they see a disconnect
	}
	if err != nil {
		return x.failWith(err)
	}
	x.conn.finishUpload()
	if len(x.unread) == 0 {
		x.releasePage() // the rest of the answer may be long in coming
	}
	x.response.Body = x
	if x.framing == framingNone {
		x.response.Body = http.NoBody
		x.endBody(io.EOF)
	}
	return nil
}

// fail ends the exchange before there is an answer, and gives err the
// sentinel that decides whether another try is allowed.
func (x *roundTrip) failWith(err error) error {
	defer x.Close()
	x.releasePage()
	if errors.Is(err, errRequestBody) && x.ctx.Err() == nil {
		return fmt.Errorf("%w: %w", llmserver.ErrBroken, err)
	}
	p := llmserver.Progress{Connected: true, Reused: x.conn.reused, Answered: x.responseBegun, At: x.start}
	return p.Failure(x.ctx, err)
}

// end notes what a read came to, and returns what the reader is to see. The end of the body ends the
// exchange; after an error the connection is left to Close.
func (x *roundTrip) endBody(err error) error {
	if err == io.EOF && x.done.CompareAndSwap(false, true) {
		alive := x.stopCancel() // else the context's end is hanging up
		if alive && x.reusable && len(x.unread) == 0 {
			x.pool.putConn(x.conn)
		} else {
			x.conn.Close()
		}
		x.releasePage()
		return err
	}
	x.releasePage()
	if x.done.Load() {
		return http.ErrBodyReadAfterClose
	}
	if x.ctx.Err() != nil {
		return context.Cause(x.ctx)
	}
	return err
}

// Close ends the exchange. Before the end of the body the replica is told that nobody wants the
// rest, and Close returns when the replica has let go of the request, as far as that can be seen: it
// has closed its side of the connection, or has not done so within 250 ms. The caller holds its slot
// until then. Memory that a Read may be using is left to it.
func (x *roundTrip) Close() error {
	if x.done.CompareAndSwap(false, true) {
		x.stopCancel()
		x.conn.lingeringClose()
	}
	return nil
}
