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

// Errors of Copy. Each error wraps exactly one of these and the cause.
var (
	ErrClientGone     = errors.New("client gone")       // the client disconnected or stopped reading
	ErrUpstreamBroken = errors.New("upstream broken")   // the response broke off after its header
	ErrRejected       = errors.New("response rejected") // by Relay.Check; nothing was written
)

// errUpstreamClosed is reported to the client of an event stream whose upstream broke off.
var errUpstreamClosed = &AbortError{"upstream_broken", "The model server broke off before the response was complete."}

// An AbortError is returned by a body after a deliberate abort of the response. Code and Message
// are sent to the client in an error event; they must not need escapes in JSON.
type AbortError struct{ Code, Message string }

func (c *AbortError) Error() string { return c.Message }

// A Relay copies upstream responses to clients. A Relay holds only options and may be used by
// several goroutines at once, unless BeforeStart, BeforeLastWrite or Check is set.
type Relay struct {
	// WriteTimeout is the time after which a write without progress fails because the client does
	// not read. Detection may take a quarter longer. 0 means no timeout.
	WriteTimeout time.Duration

	// KeepAlive, if above 0, is the idle time of an event stream after which a comment is written,
	// again and again, while the client is on an event boundary. The first comment may precede the
	// first event, and commits the upstream's status. Comments are written by a goroutine of their
	// own, under the lock also held by Copy's writes.
	KeepAlive time.Duration

	// BeforeStart, unless nil, is called once, before anything is written to the client, in the
	// goroutine of Copy or that of the keep-alive, and must not block. Such a Relay serves one
	// response.
	BeforeStart func()

	// BeforeLastWrite, unless nil, is called once for a successful response: after the end of the
	// upstream's body, and before the last write to the client. [DONE] is not the end, because an
	// upstream may still be at work afterwards. BeforeLastWrite runs in the goroutine of Copy,
	// which it blocks, with no lock held. Such a Relay serves one response.
	BeforeLastWrite func()

	// Check, unless nil, may reject a JSON response (see IsJSON) as long as nothing of it has been
	// written. Such a Relay serves one response.
	Check Checker

	// OmitErrorEvent leaves out the error event, for clients that relay the response themselves and
	// detect the early end.
	OmitErrorEvent bool

	// Opened continues the event stream of an Opening: status and header are written already. The
	// response must satisfy IsEventStream.
	Opened bool

	// Anthropic gives the error event the form of Anthropic's API.
	Anthropic bool
}

// A Checker decides whether a JSON response is written.
type Checker interface {
	// Check is called once, with the first bytes of the body: all of them if complete is true, else
	// 64 KiB. An error rejects the response. Check runs in the goroutine of Copy and must neither
	// change nor keep the body.
	Check(body []byte, complete bool) error
}

// Result describes the response as written by Copy.
type Result struct {
	Started   bool      // status and header were written; until then the caller may still write another response
	Bytes     int64     // of the upstream body, written to the client
	FirstByte time.Time // when the first of them was written; zero if none
	Stalled   bool      // a write made no progress for the WriteTimeout
}

// Copy relays resp to w until the end of the body and returns nil if the response is complete. tap
// may be nil.
//
// Copy blocks until the response has ended, the client has gone or the upstream has failed. Copy
// runs in the goroutine of the caller, a handler, and is the only user of w, resp.Body and tap
// until its return. The write watchdog and the keep-alive run in timer goroutines; both are stopped
// before Copy returns, and neither touches w afterwards. The caller closes resp.Body, which stops
// the upstream.
//
// ctx is the context of the client's request and ends when the client disconnects. Copy does not
// watch ctx: a read of resp.Body must fail when ctx ends, so the upstream request must have been
// made with ctx. An error after the end of ctx is attributed to the client, whatever the body
// returned.
//
// An error wraps ErrClientGone, ErrUpstreamBroken or ErrRejected and the cause. If the response has
// been started, the caller must panic with http.ErrAbortHandler, or the truncated response looks
// complete. Copy itself never panics.
//
// Status and header are written with the first bytes of the body, however long those take. Until
// then a broken upstream can still be reported with an honest status, unless KeepAlive has
// committed the upstream's. An early header gains a client nothing: header timeouts are no shorter
// than body timeouts.
//
// For an event stream of unknown length, each read becomes one write and one flush, cut after the
// last whole event. An unfinished event waits for its end, without a time limit; only events longer
// than 64 KiB are written in pieces. If the upstream breaks on an event boundary, or within an
// event of which nothing has been written, an error event closes the stream, with the text of an
// AbortError if the body returned one. Other responses of unknown length are written and flushed as
// they are read. A response of known length is never flushed, and starts when the body is complete
// or 64 KiB have been read; so does a JSON response with a Check, whose later reads are flushed if
// the length is unknown. A response that breaks before has not been started.
func (r *Relay) Copy(ctx context.Context, w http.ResponseWriter, resp *http.Response, tap *Tap) (Result, error) {
	if resp.StatusCode < http.StatusOK {
		return Result{}, fmt.Errorf("%w: status %d is not final", ErrUpstreamBroken, resp.StatusCode)
	}
	c := newClientWriter(w, resp, r.WriteTimeout)
	c.beforeStart, c.beforeLastWrite, c.Started = r.BeforeStart, r.BeforeLastWrite, r.Opened
	c.opened = r.Opened
	if IsJSON(resp.Header) {
		c.check = r.Check
	}
	defer c.close()
	err := r.finish(ctx, c, c.relayBody(tap, r.KeepAlive))
	return c.Result, err
}

// finish ends the response, given the error of relaying the body, and returns the error of Copy.
func (r *Relay) finish(ctx context.Context, c *clientWriter, err error) error {
	switch {
	case err == nil:
		c.finish()
	case errors.Is(err, ErrClientGone), errors.Is(err, ErrRejected):
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

// relayBody relays the body as events or as bytes.
func (c *clientWriter) relayBody(tap *Tap, keepAlive time.Duration) error {
	kind := mediaType(c.resp.Header)
	if c.resp.Header.Get("Content-Encoding") != "" {
		kind = "" // compressed: events and usage are not visible
	}
	known := c.resp.ContentLength >= 0
	if kind == eventStream && !known {
		return c.relayEvents(tap, c.startKeepAlive(keepAlive))
	}
	return c.relayBytes(tap, kind, !known)
}

// errNoDone is the error of a stream without a terminal event, delimited only by the end of the
// connection. A dying upstream ends the connection in the same way.
var errNoDone = errors.New("the connection ended before the last event of the stream")

// relayEvents relays an event stream in whole events.
func (c *clientWriter) relayEvents(tap *Tap, keepAlive *keepAlive) error {
	defer keepAlive.stop()
	done := c.resp.ProtoMajor != 1 || len(c.resp.TransferEncoding) > 0 // or the framing marks the end
	buf := getBuffer(smallBuffer)
	ends := newEventEnds()
	var last lastEventDetector
	held, inEvent := 0, false // buf[:held] is an unfinished event; inEvent: its start has been written
	for {
		n, err := c.resp.Body.Read(buf[held:])
		have := held + n
		if done = done || hasDone(buf[:have]) || last.observe(buf[held:have]); err == io.EOF && !done {
			err = errNoDone
		}
		cut := ends.lastEnd(buf[held:have])
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
				c.callBeforeLastWrite()
			}
			if err := keepAlive.writeEvents(c, buf[:cut], !inEvent); err != nil {
				return err
			}
			tap.observe(eventStream, buf[:cut], err == nil)
			have = copy(buf, buf[cut:have])
		}
		if err != nil {
			putBuffer(buf)
			keepAlive.stop()
			c.betweenEvents = c.Started && !inEvent && (c.Bytes > 0 || !c.opened)
			return unlessEOF(err)
		}
		if held = have; held == len(buf) {
			buf = growBuffer(buf)
		}
	}
}

// closeEvents writes an error event, in the form of the stream's API, to a client on an event
// boundary. err is the error of the upstream, or an AbortError.
func (c *clientWriter) closeEvents(err error, anthropic bool) {
	if !c.betweenEvents {
		return
	}
	abort, ok := errors.AsType[*AbortError](err)
	if !ok {
		abort = errUpstreamClosed
	}
	e := openai.Error{Type: openai.TypeServer, Code: abort.Code, Message: abort.Message}
	event := e.Event()
	if anthropic {
		event = e.AnthropicEvent()
	}
	_, _ = c.write(event, true) // the stream is aborted in any case
}

// relayBytes relays any other body: one write per read if live, else in full buffers.
func (c *clientWriter) relayBytes(tap *Tap, kind string, live bool) error {
	size := largeBuffer
	if !live && c.resp.ContentLength <= smallBuffer {
		size = smallBuffer
	}
	buf := getBuffer(size)
	for {
		held := c.check != nil // until the check
		n, err := c.fillBuffer(buf, live && !held)
		failed := err != nil && err != io.EOF
		if held {
			if !failed {
				err = c.checkStart(buf[:n], err)
			}
			if err != nil && err != io.EOF {
				putBuffer(buf)
				return err
			}
		}
		if n > 0 && (live || !failed) {
			if c.Bytes+int64(n) == c.resp.ContentLength {
				c.callBeforeLastWrite()
			}
			if err := c.writeBody(buf[:n], live); err != nil {
				return err
			}
		}
		tap.observe(kind, buf[:n], err == nil)
		if err != nil {
			putBuffer(buf)
			return unlessEOF(err)
		}
	}
}

// checkStart calls the check with the first bytes of the body, which were read with the given
// error, nil or io.EOF. The result is that error, or an ErrRejected.
func (c *clientWriter) checkStart(p []byte, err error) error {
	check := c.check
	c.check = nil
	if rejected := check.Check(p, err == io.EOF || int64(len(p)) == c.resp.ContentLength); rejected != nil {
		return fmt.Errorf("%w: %w", ErrRejected, rejected)
	}
	return err
}

// fillBuffer fills p from the body, or reads once if live.
func (c *clientWriter) fillBuffer(p []byte, live bool) (n int, err error) {
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
