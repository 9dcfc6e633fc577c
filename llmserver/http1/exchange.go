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

	"berth/llmserver"
)

// An exchange is one request and its answer on a connection, and the body of
// that answer. It owns the connection until it ends:
//
//	open → ended   by the last byte read, an error, or Close
//
// The edge is one CAS, and who wins it lets go of the connection. All but Close is
// for one goroutine at a time.
type exchange struct {
	response http.Response
	conn     *conn
	pool     *pool
	began    time.Time
	stop     func() bool // that the context's end closes the connection
	ended    atomic.Bool

	inbox
	answered bool // some byte of an answer has come
	keep     bool // the connection may be used again after the end of the answer
	late     bool // the replica stopped reading the request

	framing framing
	left    int64 // of the body, if its length is known
	chunks  chunks
	err     error // of all further reads
}

func newExchange(req *http.Request, c *conn, p *pool) *exchange {
	x := &exchange{conn: c, pool: p, began: time.Now(), stop: context.AfterFunc(req.Context(), c.abort)}
	x.response.Request = req
	return x
}

// errBody is what the caller does wrong whose request is shorter than it said.
var errBody = errors.New("the request's body could not be read to its end")

// send writes the head and the body behind it. It stops without an error when
// the replica answers, or hangs up, before it has all: what it says is still to be read.
//
// What fits the page with the head goes out in one write, and so does, from where it lies, a longer body that is a Sender.
func (x *exchange) send(b []byte) error {
	body, left := x.response.Request.Body, x.response.Request.ContentLength
	if s, ok := body.(Sender); ok && left > int64(cap(b)-len(b)) {
		return x.sendFrom(s, b, left)
	}
	for {
		for left > 0 && len(b) < cap(b) {
			n, err := body.Read(b[len(b):min(int64(cap(b)), int64(len(b))+left)])
			b, left = b[:len(b)+n], left-int64(n)
			if err != nil && left > 0 {
				return errBody
			}
		}
		if !x.sendAll(b, nil, left == 0) {
			return nil
		}
		if left == 0 {
			x.keep = true
			return nil
		}
		b = b[:0]
	}
}

// sendAll writes all of p and of what is behind it; false if what the replica says, or its end, is to be read now, or it is
// late.
func (x *exchange) sendAll(p, behind []byte, last bool) bool {
	early, err := x.conn.send(p, behind)
	x.late = err == llmserver.ErrSendTimeout
	return err == nil && !early && (last || x.conn.silent())
}

// Sender is a request body in memory. SendTo writes what has not been read of it, as an io.WriterTo would; but it may
// hold a lock meanwhile that Close waits for, which net/http's transport could not bear.
type Sender interface{ SendTo(w io.Writer) error }

// sendFrom has the body write itself behind the head.
func (x *exchange) sendFrom(body Sender, head []byte, left int64) error {
	u := upload{x: x, before: head, left: left}
	if err := body.SendTo(&u); err != nil && err != errStopped || err == nil && u.left > 0 {
		return errBody
	}
	x.keep = u.left == 0 && !u.stopped
	return nil
}

// errStopped ends an upload that the replica does not want to its end.
var errStopped = errors.New("the replica has answered or hung up")

// An upload is where a body writes itself. It takes no more than it is to have.
type upload struct {
	x       *exchange
	before  []byte // the head, and what is short behind it: they go out with what comes next
	left    int64
	stopped bool
}

// stretch is how much is sent between two looks whether the replica has answered.
const stretch = 1 << 20

func (u *upload) Write(p []byte) (n int, err error) {
	p = p[:min(int64(len(p)), u.left)]
	if len(u.before)+len(p) <= roomy && int64(len(p)) < u.left {
		u.before, u.left = append(u.before, p...), u.left-int64(len(p))
		return len(p), nil
	}
	for piece := range slices.Chunk(p, stretch) {
		n, u.left = n+len(piece), u.left-int64(len(piece))
		if u.stopped = !u.x.sendAll(u.before, piece, u.left == 0); u.stopped {
			return n, errStopped
		}
		u.before = nil
	}
	return n, nil
}

// answer reads up to the end of the answer's head. After an error nothing is left of the exchange.
func (x *exchange) answer() error {
	if err := x.readResponse(); err != nil {
		return x.fail(err)
	}
	x.conn.wait(0)
	if len(x.rest) == 0 {
		x.dropPage() // the rest of the answer may be long in coming
	}
	x.response.Body = x
	if x.framing == empty {
		x.response.Body = http.NoBody
		x.end(io.EOF)
	}
	return nil
}

// fail ends the exchange before there is an answer, and gives err the
// sentinel that decides whether another try is allowed.
func (x *exchange) fail(err error) error {
	x.Close()
	x.dropPage()
	ctx := x.response.Request.Context()
	if errors.Is(err, errBody) && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", llmserver.ErrBroken, err)
	}
	p := llmserver.Progress{Connected: true, Reused: x.conn.reused, Answered: x.answered, At: x.began}
	return p.Failure(ctx, err)
}

// end ends the exchange by what a read came to, and returns what the reader is to see.
func (x *exchange) end(err error) error {
	if !x.ended.CompareAndSwap(false, true) {
		return http.ErrBodyReadAfterClose
	}
	alive := x.stop() // else the connection is being closed
	if err == io.EOF && alive && x.keep && len(x.rest) == 0 {
		x.pool.put(x.conn)
	} else {
		x.conn.Close()
	}
	x.dropPage()
	if ctx := x.response.Request.Context(); err != io.EOF && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Close ends the exchange. Before the end of the answer it closes the
// connection, which is how the replica hears that nobody wants the rest. Memory that a Read may be using is left to it.
func (x *exchange) Close() error {
	if x.ended.CompareAndSwap(false, true) {
		x.stop()
		x.conn.Close()
	}
	return nil
}
