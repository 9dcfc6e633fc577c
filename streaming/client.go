package streaming

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// client is the receiving side of one Copy.
type client struct {
	Result
	w     http.ResponseWriter
	rc    http.ResponseController
	resp  *http.Response
	watch watch

	trailer http.Header // what was announced of it

	ending        func() // called before the write that completes the answer; nil after that
	betweenEvents bool   // the body has ended, and what the client has of it ends where an event does
}

func newClient(w http.ResponseWriter, resp *http.Response, timeout time.Duration) *client {
	c := &client{w: w, rc: *http.NewResponseController(w), resp: resp, trailer: resp.Trailer}
	c.watch.rc, c.watch.timeout = &c.rc, timeout
	return c
}

// start writes status and header, once. The server sends them along with the first body bytes.
func (c *client) start() {
	if c.Started {
		return
	}
	c.Started = true
	CopyResponseHeader(c.w.Header(), c.resp.Header)
	announceTrailer(c.w.Header(), c.trailer)
	c.w.WriteHeader(c.resp.StatusCode)
}

// send passes upstream bytes on.
func (c *client) send(p []byte, flush bool) error {
	c.start()
	n, err := c.write(p, flush)
	c.Bytes += int64(n)
	if err != nil {
		return err
	}
	if c.FirstByte.IsZero() {
		c.FirstByte = time.Now()
	}
	return nil
}

// kept is how much of an answer the server keeps to itself until it is told to flush or the handler returns. An
// answer that is no longer never waits for its client here, so it needs no watch and no timer.
const kept = 2 << 10

// write writes bytes of whatever origin under the watch.
func (c *client) write(p []byte, flush bool) (int, error) {
	if flush || c.Bytes+int64(len(p)) >= kept {
		c.watch.start()
	}
	c.watch.writes.Add(1)
	n, err := c.w.Write(p)
	if err == nil && flush {
		err = c.rc.Flush()
	}
	c.watch.writes.Add(1)
	if err != nil {
		return n, c.failed(err)
	}
	return n, nil
}

// failed is the error of a write.
func (c *client) failed(err error) error {
	if c.watch.stop() {
		c.Stalled = true
		return fmt.Errorf("%w: it read nothing for %v: %w", ErrClientGone, c.watch.timeout, err)
	}
	return fmt.Errorf("%w: %w", ErrClientGone, err)
}

// end is called before the write that completes the answer.
func (c *client) end() {
	if c.ending != nil {
		c.ending()
		c.ending = nil
	}
}

// finish ends an answer that came whole.
func (c *client) finish() {
	c.end()
	c.start()
	copyTrailer(c.w.Header(), c.resp.Trailer)
}

// close ends the watch. What the server has yet to send when the handler returns or panics gets a deadline of its own,
// which is forgotten with the request.
func (c *client) close() {
	if stalled := c.watch.stop(); c.Started && !stalled && c.watch.timeout > 0 {
		_ = c.rc.SetWriteDeadline(time.Now().Add(c.watch.timeout)) // a writer without deadlines needs none
	}
}

// watch ends a write that hangs: four times per timeout it looks whether the write under way is the one it saw the last
// time, and puts the write deadline into the past when that has been so for the timeout. A write thus fails after the
// timeout or up to a quarter more, and costs two atomic additions while all is well.
//
// A deadline armed ahead would not do: net/http resets an HTTP/2 stream when it passes, even if nothing is being written
// and it is the upstream server that is silent.
type watch struct {
	rc      *http.ResponseController
	timeout time.Duration // 0: no watch
	started bool          // for the goroutine that writes
	writes  atomic.Uint64 // odd while a write is under way

	mu      sync.Mutex
	timer   *time.Timer // nil before start and after stop
	seen    uint64      // writes at the last look
	hanging int         // how many looks in a row have seen the same write under way
	stalled bool
}

// looks is how often the watch looks per timeout.
const looks = 4

// start begins the watch, once.
func (w *watch) start() {
	if w.started || w.timeout <= 0 {
		return
	}
	w.started = true
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(w.timeout/looks, w.look)
}

func (w *watch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer == nil {
		return
	}
	writes := w.writes.Load()
	if writes%2 == 0 || writes != w.seen {
		w.seen, w.hanging = writes, 0
	} else if w.hanging++; w.hanging == looks {
		w.stalled = true
		_ = w.rc.SetWriteDeadline(time.Unix(1, 0)) // a writer without deadlines cannot be helped
		return
	}
	w.timer.Reset(w.timeout / looks)
}

// stop tells whether the watch has ended a write. Once it has returned, the writer is not touched any more, which
// the server demands of a handler that returns. It may be called twice.
func (w *watch) stop() (stalled bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	return w.stalled
}
