package http1

import (
	"slices"
	"sync"
	"time"
)

const (
	// idleTimeout is how long an unused connection is kept. It stays below the
	// 5 s after which common engines (uvicorn's, and so vLLM's and SGLang's, and
	// llama.cpp's default) close one.
	idleTimeout = 4 * time.Second
	// maxIdle bounds what a burst leaves behind.
	maxIdle = 4096
)

// A pool holds the idle connections to one replica. The one used last is the
// first to be used again, so that what a burst has left over grows old and is closed.
// Its zero value is empty and ready.
type pool struct {
	mu     sync.Mutex
	idle   []*conn // the one used last at the end
	timer  *time.Timer
	armed  bool // the timer runs
	closed bool // nothing is kept any more
}

// get returns a connection that is still open and silent, or nil.
func (p *pool) get() *conn {
	for {
		c := p.pop()
		if c == nil {
			return nil
		}
		if c.usable(time.Since(c.since)) {
			c.reused = true
			return c
		}
		c.Close()
	}
}

// usable reports whether a connection that was idle for so long is open and nothing unread is on
// it. Bytes that nobody asked for would be taken for the next response, perhaps another client's.
func (c *conn) usable(idle time.Duration) bool {
	return canPeek && idle < idleTimeout && c.silent()
}

func (p *pool) pop() *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.idle) - 1
	if last < 0 {
		return nil
	}
	c := p.idle[last]
	p.idle[last] = nil
	p.idle = p.idle[:last]
	return c
}

// put takes a connection on which nothing is under way.
func (p *pool) put(c *conn) {
	c.since = time.Now()
	if !p.push(c) {
		c.Close()
	}
}

func (p *pool) push(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) >= maxIdle {
		return false
	}
	p.idle = append(p.idle, c)
	p.arm()
	return true
}

// arm sets the timer to when the oldest connection has been idle for too long. The caller holds mu.
func (p *pool) arm() {
	if p.armed || len(p.idle) == 0 {
		return
	}
	p.armed = true
	wait := idleTimeout - time.Since(p.idle[0].since)
	if p.timer == nil {
		p.timer = time.AfterFunc(wait, p.expire)
	} else {
		p.timer.Reset(wait)
	}
}

// expire closes what has been idle for too long.
func (p *pool) expire() {
	p.mu.Lock()
	p.armed = false
	young := slices.IndexFunc(p.idle, func(c *conn) bool { return time.Since(c.since) < idleTimeout })
	if young < 0 {
		young = len(p.idle)
	}
	old := slices.Clone(p.idle[:young])
	p.idle = slices.Delete(p.idle, 0, young)
	p.arm()
	p.mu.Unlock()
	closeAll(old)
}

// drop closes what is idle.
func (p *pool) drop() {
	p.mu.Lock()
	all := p.idle
	p.idle = nil
	p.mu.Unlock()
	closeAll(all)
}

// close closes what is idle, now and later.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.drop()
}

func closeAll(cs []*conn) {
	for _, c := range cs {
		c.Close()
	}
}
