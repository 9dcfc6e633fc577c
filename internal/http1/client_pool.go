package http1

import (
	"slices"
	"sync"
	"time"
)

const (
	// idleTimeout is how long an unused connection is kept. It is below the 5 s after which common
	// engines close one: uvicorn, and so vLLM and SGLang, and llama.cpp's default.
	idleTimeout = 4 * time.Second
	// maxIdle bounds the connections that remain after a burst.
	maxIdle = 4096
)

// A connPool holds the idle connections to one server. The connection used last is reused first, so
// that the surplus of a burst grows old and is closed. The zero value is empty and ready for use.
// Its methods may be called from any goroutine.
type connPool struct {
	mu         sync.Mutex
	idle       []*clientConn // ordered by last use, the most recent at the end
	timer      *time.Timer   // closes the oldest connection when its time is over
	timerArmed bool
	closed     bool // no connection is kept any more
}

// takeConn returns an idle connection that is still open and has no pending data, or nil. It closes
// the connections that do not qualify.
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

// reusable reports whether a connection that was idle for the given time is open with nothing unread
// on it. Stray bytes would be taken for the next response, perhaps of another client.
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

// putConn keeps a connection that has no request, or closes it if the pool is full or closed.
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

// armTimer sets the timer to when the oldest connection reaches idleTimeout, unless it is set. The
// caller holds mu.
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

// closeExpired closes the connections that have been idle for idleTimeout. The timer calls it.
func (p *connPool) closeExpired() {
	p.mu.Lock()
	p.timerArmed = false
	young := slices.IndexFunc(p.idle, func(c *clientConn) bool { return time.Since(c.idleSince) < idleTimeout })
	if young < 0 {
		young = len(p.idle)
	}
	expired := slices.Clone(p.idle[:young])
	p.idle = slices.Delete(p.idle, 0, young)
	p.armTimer()
	p.mu.Unlock()
	closeConns(expired) // without the lock: closing is a system call
}

// closeIdle closes all idle connections.
func (p *connPool) closeIdle() {
	p.mu.Lock()
	all := p.idle
	p.idle = nil
	p.mu.Unlock()
	closeConns(all)
}

// close closes all idle connections, and from now on every connection that is put back.
func (p *connPool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.closeIdle()
}

func closeConns(conns []*clientConn) {
	for _, c := range conns {
		c.Close()
	}
}
