package http1

import (
	"slices"
	"sync"
	"time"
)

const (
	// idleTimeout bounds the time a connection stays in the pool. The bound is below the 5 s after
	// which common engines close an idle connection: uvicorn, and so vLLM and SGLang, and llama.cpp
	// by default.
	idleTimeout = 4 * time.Second
	// maxIdle bounds the connections remaining after a burst.
	maxIdle = 4096
)

// A connPool holds and owns the idle connections to one server. The most recently used connection
// is reused first, so the surplus of a burst grows old and is closed. The zero value is empty and
// ready for use. All methods may be called from any goroutine; none blocks on the network.
// Connections are closed without holding mu, because closing is a system call.
type connPool struct {
	mu         sync.Mutex
	idle       []*clientConn // ordered by last use, the most recent at the end
	timer      *time.Timer   // calls closeExpired; nil before the first connection
	timerArmed bool
	closed     bool // further connections are refused
}

// takeConn removes an idle connection from the pool, open and without pending data, and gives the
// ownership to the caller. takeConn returns nil if there is none, and closes all unsuitable
// connections on the way.
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

// reusable reports whether a connection is open, without unread data, after the given idle time.
// Stray bytes would be taken for the next response, perhaps of another client. Only the owner may
// call it.
func (c *clientConn) reusable(idle time.Duration) bool {
	return canPeek && idle < idleTimeout && c.noPendingData()
}

// popConn removes the most recently used connection, or returns nil.
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

// putConn takes the ownership of a connection without a request, and closes the connection if the
// pool is full or closed.
func (p *connPool) putConn(c *clientConn) {
	c.idleSince = time.Now()
	if !p.pushConn(c) {
		c.Close()
	}
}

// pushConn adds a connection. It returns false, without adding, if the pool is full or closed.
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

// armTimer sets the timer to the expiry of the oldest connection, unless already set. The caller
// holds mu.
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

// closeExpired closes the connections idle for at least idleTimeout. Called in the goroutine of the
// timer.
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

// closeIdle closes all idle connections. The pool stays usable.
func (p *connPool) closeIdle() {
	p.mu.Lock()
	all := p.idle
	p.idle = nil
	p.mu.Unlock()
	closeConns(all)
}

// closePool closes all idle connections, and makes putConn close all later ones. A second call does
// nothing.
func (p *connPool) closePool() {
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
