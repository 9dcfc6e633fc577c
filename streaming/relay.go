package streaming

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"berth/internal/openai"
)

// The side that ended an answer before its end. Every error of Copy is one of them, around its cause.
var (
	ErrClientGone     = errors.New("client gone")
	ErrUpstreamBroken = errors.New("upstream broken")
)

// broken is the error event of a stream whose upstream broke.
var broken = &AbortError{"upstream_broken", "The model server broke off before the answer was complete."}

// An AbortError is the error of a body whose reading was ended on purpose. Code and Message also go to
// the client, in the error event of an event stream.
type AbortError struct{ Code, Message string }

func (c *AbortError) Error() string { return c.Message }

// Relay passes upstream answers on to clients. It may be used by many goroutines at once.
type Relay struct {
	// WriteTimeout is how long a write may hang on a client that does not read before that client counts as gone;
	// it may take a quarter longer. 0 waits for ever.
	WriteTimeout time.Duration

	// KeepAlive, if above 0, is the silence of an event stream after which a comment is written, time and again, where the
	// client stands between events. The first may come before the first event, and commits to the upstream's status then.
	KeepAlive time.Duration

	// BeforeLastWrite, unless nil, is called once for a response that ends well: when the upstream server has ended its body, and
	// before the write that completes the response. [DONE] does not count as the end, because an upstream server may
	// still be at work behind it. Such a Relay serves one response.
	BeforeLastWrite func()

	// OmitErrorEvent leaves the error event away, for a reader that passes the answer on and will see it break off itself.
	OmitErrorEvent bool

	// Anthropic gives the error event the form of Anthropic's API.
	Anthropic bool
}

// Result is what became of an answer.
type Result struct {
	Started   bool      // status and header were written; until then the caller may still give another answer
	Bytes     int64     // of the upstream body, written to the client
	FirstByte time.Time // when the first of them was written; zero if none
	Stalled   bool      // the client read nothing for the WriteTimeout
}

// Copy passes resp on to w until it ends, and returns nil if it ended well. tap may be nil.
//
// ctx is that of the client's request; when it is done, the client has gone. The upstream request must end with it: this
// is what wakes Copy from a read. The caller closes resp.Body, which stops the upstream server.
//
// The error is ErrClientGone or ErrUpstreamBroken around its cause. If the answer was started, only a
// panic(http.ErrAbortHandler) keeps it from looking complete; Copy never panics, its caller must.
//
// Status and header go out with the first bytes of the body, even if those take long: until then a broken upstream can
// still be answered with an honest status (unless KeepAlive ends that), and an early one is worth nothing to a client, whose silence limit for headers
// is no shorter than that for the body.
//
// Of an event stream of unknown length each read becomes one write and one flush, cut after the last whole event. An
// unfinished event waits for its end, whatever time that takes, and goes out in pieces only when it is longer than 64
// KiB. When the upstream breaks between events, or within one that was held back, the stream is closed by an error event; a [AbortError] gives that its text.
// Any other answer of unknown length is written and flushed as it is read. An answer of known length is never flushed,
// and not started before it has come whole or reached 64 KiB.
func (r *Relay) Copy(ctx context.Context, w http.ResponseWriter, resp *http.Response, tap *Tap) (Result, error) {
	if resp.StatusCode < http.StatusOK {
		return Result{}, fmt.Errorf("%w: status %d answers no request", ErrUpstreamBroken, resp.StatusCode)
	}
	c := newClient(w, resp, r.WriteTimeout)
	c.ending = r.BeforeLastWrite
	defer c.close()
	err := r.ended(ctx, c, c.pass(tap, r.KeepAlive))
	return c.Result, err
}

// ended ends the answer by what passing it on came to.
func (r *Relay) ended(ctx context.Context, c *client, err error) error {
	switch {
	case err == nil:
		c.finish()
	case errors.Is(err, ErrClientGone):
	case ctx.Err() != nil:
		err = fmt.Errorf("%w: %w", ErrClientGone, context.Cause(ctx))
	default:
		err = fmt.Errorf("%w: %w", ErrUpstreamBroken, err)
		if !r.OmitErrorEvent {
			c.closeEvents(err, r.Anthropic)
		}
	}
	return err
}

// pass chooses how to pass the body on.
func (c *client) pass(tap *Tap, silence time.Duration) error {
	kind := mediaType(c.resp.Header)
	if c.resp.Header.Get("Content-Encoding") != "" {
		kind = "" // compressed: events and usage cannot be told
	}
	known := c.resp.ContentLength >= 0
	if kind == eventStream && !known {
		return c.passEvents(tap, c.keepAlive(silence))
	}
	return c.passBody(tap, kind, !known)
}

// errNoDone is the end of a stream that is delimited by nothing but the end of its connection, which a process that
// dies brings about just as well.
var errNoDone = errors.New("the connection ended before the last event of the stream")

// passEvents passes an event stream on in whole events.
func (c *client) passEvents(tap *Tap, alive *keepAlive) error {
	defer alive.stop()
	done := c.resp.ProtoMajor != 1 || len(c.resp.TransferEncoding) > 0 // or its end can be told from a break
	buf := borrow(smallBuffer)
	ends := newEventEnds()
	var last lastEvent
	held, inEvent := 0, false // buf[:held] waits for the end of its event; inEvent: the client has the start of it
	for {
		n, err := c.resp.Body.Read(buf[held:])
		have := held + n
		if done = done || hasDone(buf[:have]) || last.in(buf[held:have]); err == io.EOF && !done {
			err = errNoDone
		}
		cut := ends.last(buf[held:have])
		switch {
		case err == io.EOF:
			cut, inEvent = have, false
		case cut > 0:
			cut, inEvent = held+cut, false
		case inEvent || have == largeBuffer:
			cut, inEvent = have, true
		}
		if cut > 0 {
			if err == io.EOF {
				c.end()
			}
			if err := alive.send(c, buf[:cut], !inEvent); err != nil {
				return err
			}
			tap.see(eventStream, buf[:cut], err == nil)
			have = copy(buf, buf[cut:have])
		}
		if err != nil {
			giveBack(buf)
			alive.stop()
			c.betweenEvents = c.Started && !inEvent
			return unlessEOF(err)
		}
		if held = have; held == len(buf) {
			buf = enlarge(buf)
		}
	}
}

// closeEvents writes an error event, in the form of the stream's API, if the client of an event stream
// is between events: err is that of an upstream that broke or of an AbortError.
func (c *client) closeEvents(err error, anthropic bool) {
	if !c.betweenEvents {
		return
	}
	cut, ok := errors.AsType[*AbortError](err)
	if !ok {
		cut = broken
	}
	e := openai.Error{Type: openai.TypeServer, Code: cut.Code, Message: cut.Message}
	event := e.Event()
	if anthropic {
		event = e.AnthropicEvent()
	}
	_, _ = c.write(event, true) // the stream is aborted either way
}

// passBody passes any other body on: as it comes if live, else in full buffers.
func (c *client) passBody(tap *Tap, kind string, live bool) error {
	size := largeBuffer
	if !live && c.resp.ContentLength <= smallBuffer {
		size = smallBuffer
	}
	buf := borrow(size)
	for {
		n, err := c.read(buf, live)
		if broken := err != nil && err != io.EOF; n > 0 && (live || !broken) {
			if c.Bytes+int64(n) == c.resp.ContentLength {
				c.end()
			}
			if err := c.send(buf[:n], live); err != nil {
				return err
			}
		}
		tap.see(kind, buf[:n], err == nil)
		if err != nil {
			giveBack(buf)
			return unlessEOF(err)
		}
	}
}

// read fills p, or reads once if live.
func (c *client) read(p []byte, live bool) (n int, err error) {
	for {
		var m int
		m, err = c.resp.Body.Read(p[n:])
		n += m
		if live || err != nil || n == len(p) {
			return n, err
		}
	}
}

func unlessEOF(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}
