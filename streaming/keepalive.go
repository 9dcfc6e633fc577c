package streaming

import (
	"maps"
	"sync"
	"time"
)

// keepAliveComment is a comment, which readers of event streams ignore, and an empty line, which
// ends no event since there is none.
const keepAliveComment = ": keep-alive\n\n"

// A keepAlive writes comments into an event stream while the stream is idle and on an event
// boundary. A nil *keepAlive writes none.
//
// Writes do not reset the timer; when the timer fires, onTimer compares the time of the last write.
//
// Two goroutines write while a keepAlive runs: that of Copy, through writeEvents, and the timer's.
// mu is held during both writes, so a slow client blocks both until the write watchdog ends the
// write.
type keepAlive struct {
	c     *clientWriter
	every time.Duration

	mu      sync.Mutex // guards all below, and c while the stream is relayed
	timer   *time.Timer
	last    time.Time // of the last write
	between bool      // the client is on an event boundary, and no write has failed
	stopped bool
}

// startKeepAlive returns a keepAlive with a running timer, nil if every is not positive.
func (c *clientWriter) startKeepAlive(every time.Duration) *keepAlive {
	if every <= 0 {
		return nil
	}
	c.trailer = maps.Clone(c.trailer) // reading the body writes to the original
	k := &keepAlive{c: c, every: every, last: time.Now(), between: true}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer = time.AfterFunc(every, k.onTimer)
	return k
}

// onTimer writes a comment if the stream has been idle for long enough, and rearms the timer.
func (k *keepAlive) onTimer() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped {
		return
	}
	if left := k.every - time.Since(k.last); left > 0 {
		k.timer.Reset(left)
		return
	}
	if k.between {
		k.c.writeHeader()
		_, err := k.c.write([]byte(keepAliveComment), true)
		k.between = err == nil // the next write of the stream fails as well
	}
	k.last = time.Now()
	k.timer.Reset(k.every)
}

// writeEvents writes upstream bytes; between says whether they end on an event boundary.
func (k *keepAlive) writeEvents(c *clientWriter, p []byte, between bool) error {
	if k == nil {
		return c.writeBody(p, true)
	}
	return k.writeEventsLocked(c, p, between)
}

// writeEventsLocked is writeEvents under the lock, for a non-nil keepAlive.
func (k *keepAlive) writeEventsLocked(c *clientWriter, p []byte, between bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	err := c.writeBody(p, true)
	k.last, k.between = time.Now(), between && err == nil
	return err
}

// stop stops the comments. Once stop has returned, the caller is the only user of the clientWriter.
// Further calls do nothing.
func (k *keepAlive) stop() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
	k.timer.Stop()
}
