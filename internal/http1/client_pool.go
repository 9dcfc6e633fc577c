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
type connPool struct {
	mu         sync.Mutex
	idle       []*clientConn // the one used last at the end
	timer      *time.Timer
	timerArmed bool // the timer runs
	closed     bool // nothing is kept any more
}

// get returns a connection that is still open and silent, or nil.
func (p *connPool) takeConn() *clientConn {
	for {
		c := p.popConn()
		if c == nil {
			return nil
		}
		if c.reusable(time.Since(c.idleSince)) {
			c.reused = true
			return c
		}
		c.Close()
	}
}

// usable reports whether a connection that was idle for so long is open and nothing unread is on
// it. Bytes that nobody asked for would be taken for the next response, perhaps another client's.
func (c *clientConn) reusable(idle time.Duration) bool {
	return canPeek && idle < idleTimeout && c.noPendingData()
}

func (p *connPool) popConn() *clientConn {
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
func (p *connPool) putConn(c *clientConn) {
	c.idleSince = time.Now()
	if !p.pushConn(c) {
		c.Close()
	}
}

func (p *connPool) pushConn(c *clientConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) >= maxIdle {
		return false
	}
	p.idle = append(p.idle, c)
	p.armTimer()
	return true
}

// arm sets the timer to when the oldest connection has been idle for too long. The caller holds mu.
func (p *connPool) armTimer() {
	if p.timerArmed || len(p.idle) == 0 {
		return
	}
	p.timerArmed = true
	wait := idleTimeout - time.Since(p.idle[0].idleSince)
	if p.timer == nil {
		p.timer = time.AfterFunc(wait, p.closeExpired)
	} else {
		p.timer.Reset(wait)
	}
}

// expire closes what has been idle for too long.
func (p *connPool) closeExpired() {
	p.mu.Lock()
	p.timerArmed = false
	young := slices.IndexFunc(p.idle, func(c *clientConn) bool { return time.Since(c.idleSince) < idleTimeout })
	if young < 0 {
		young = len(p.idle)
	}
	old := slices.Clone(p.idle[:young])
	p.idle = slices.Delete(p.idle, 0, young)
	p.armTimer()
	p.mu.Unlock()
	closeConns(old)
}

// drop closes what is idle.
func (p *connPool) closeIdle() {
	p.mu.Lock()
	all := p.idle
	p.idle = nil
	p.mu.Unlock()
	closeConns(all)
}

// close closes what is idle, now and later.
func (p *connPool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.closeIdle()
}

func closeConns(cs []*clientConn) {
	for _, c := range cs {
		c.Close()
	}
}
