package streaming

import (
	"fmt"
	"net/http"
	"time"
)

// A clientWriter writes one response to the client. Only the goroutine of Copy may use a
// clientWriter; while a keepAlive is running, both of its goroutines may, under the lock of the
// keepAlive.
type clientWriter struct {
	Result
	w        http.ResponseWriter
	rc       http.ResponseController
	resp     *http.Response
	watchdog writeWatchdog

	trailer http.Header // the announced trailer fields

	check           Checker // called before the first write; nil once called
	beforeStart     func()  // called before the first write; may be nil
	beforeLastWrite func()  // called before the response's last write; nil once called
	opened          bool    // comments were written before the response
	betweenEvents   bool    // the body has ended, with the last written byte on an event boundary
}

func newClientWriter(w http.ResponseWriter, resp *http.Response, timeout time.Duration) *clientWriter {
	c := &clientWriter{w: w, rc: *http.NewResponseController(w), resp: resp, trailer: resp.Trailer}
	c.watchdog.rc, c.watchdog.timeout = &c.rc, timeout
	return c
}

// writeHeader writes status and header, once. The server sends them with the first body bytes.
func (c *clientWriter) writeHeader() {
	if c.beforeStart != nil { // once, also if comments have been written before
		c.beforeStart()
		c.beforeStart = nil
	}
	if c.Started {
		return
	}
	c.Started = true
	CopyResponseHeader(c.w.Header(), c.resp.Header)
	announceTrailer(c.w.Header(), c.trailer)
	c.w.WriteHeader(c.resp.StatusCode)
}

// writeBody writes bytes of the upstream body, after the header if the header has not been written
// yet.
func (c *clientWriter) writeBody(p []byte, flush bool) error {
	c.writeHeader()
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

// serverBuffer is the number of bytes buffered by the server until a flush or the return of the
// handler. Writes within the buffer cannot block on the client, so they need no watchdog.
const serverBuffer = 2 << 10

// write writes any bytes, of the upstream or not, under the watchdog.
func (c *clientWriter) write(p []byte, flush bool) (int, error) {
	if flush || c.Bytes+int64(len(p)) >= serverBuffer {
		c.watchdog.start()
	}
	c.watchdog.writes.Add(1)
	n, err := c.w.Write(p)
	if err == nil && flush {
		err = c.rc.Flush()
	}
	c.watchdog.writes.Add(1)
	if err != nil {
		return n, c.writeError(err)
	}
	return n, nil
}

// writeError wraps the error of a write in ErrClientGone and records whether the watchdog was the
// cause.
func (c *clientWriter) writeError(err error) error {
	if c.watchdog.stop() {
		c.Stalled = true
		return fmt.Errorf("%w: it read nothing for %v: %w", ErrClientGone, c.watchdog.timeout, err)
	}
	return fmt.Errorf("%w: %w", ErrClientGone, err)
}

// callBeforeLastWrite calls beforeLastWrite the first time.
func (c *clientWriter) callBeforeLastWrite() {
	if c.beforeLastWrite != nil {
		c.beforeLastWrite()
		c.beforeLastWrite = nil
	}
}

// finish completes a response after the end of the body.
func (c *clientWriter) finish() {
	c.callBeforeLastWrite()
	c.writeHeader()
	copyTrailer(c.w.Header(), c.resp.Trailer)
}

// close stops the watchdog. Bytes written by the server after the handler has returned or panicked
// get a write deadline, which net/http resets for the next request.
func (c *clientWriter) close() {
	if stalled := c.watchdog.stop(); c.Started && !stalled && c.watchdog.timeout > 0 {
		_ = c.rc.SetWriteDeadline(time.Now().Add(c.watchdog.timeout)) // a writer may support no deadlines
	}
}
