package streaming

import (
	"maps"
	"sync"
	"time"
)

// keepAliveComment is a line that readers of event streams ignore, and the empty line behind it that ends no event.
const keepAliveComment = ": keep-alive\n\n"

// keepAlive writes comments into an event stream while nothing else is written, and only where the client stands between
// events. Nil writes none.
//
// Its timer is not reset by every write: it looks at the time of the last one when it fires.
type keepAlive struct {
	c     *client
	every time.Duration

	mu      sync.Mutex // guards all below, and the client's writer while the stream passes
	timer   *time.Timer
	last    time.Time // of the last write
	between bool      // the client stands between events, and no write has failed
	stopped bool
}

// keepAlive begins a silence.
func (c *client) keepAlive(every time.Duration) *keepAlive {
	if every <= 0 {
		return nil
	}
	c.trailer = maps.Clone(c.trailer) // what reads the body also writes to it
	k := &keepAlive{c: c, every: every, last: time.Now(), between: true}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer = time.AfterFunc(every, k.fire)
	return k
}

func (k *keepAlive) fire() {
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
		k.c.start()
		_, err := k.c.write([]byte(keepAliveComment), true)
		k.between = err == nil // the stream's own next write fails, too
	}
	k.last = time.Now()
	k.timer.Reset(k.every)
}

// send passes upstream bytes on, after which the client stands between events or not.
func (k *keepAlive) send(c *client, p []byte, between bool) error {
	if k == nil {
		return c.send(p, true)
	}
	return k.sendLocked(c, p, between)
}

func (k *keepAlive) sendLocked(c *client, p []byte, between bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	err := c.send(p, true)
	k.last, k.between = time.Now(), between && err == nil
	return err
}

// stop ends the comments. Once it has returned, the client is the caller's alone. It may be called twice.
func (k *keepAlive) stop() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
	k.timer.Stop()
}
