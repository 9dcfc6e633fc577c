package ingress

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"math"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"berth/internal/tcp"
)

const (
	// maxExcessConns bounds the open connections beyond the limit, each until its rejection. Accept
	// blocks while there are as many.
	maxExcessConns = 16
	// excessTimeout bounds how long a connection beyond the limit may take to send a request and to
	// read the response.
	excessTimeout = 2 * time.Second
	// minConnections is the lowest derived limit.
	minConnections = 8
)

// deriveConnLimit returns the limit of client connections for a process with this descriptor limit:
// two descriptors per connection, since a proxied request needs one for the client and one for the
// replica. An eighth, and no less than excess connections need, is reserved for log files, probes,
// the admin listener and idle connections to replicas.
func deriveConnLimit(descriptors uint64) int64 {
	descriptors = min(descriptors, 1<<40)
	reserve := max(descriptors/8, 2*maxExcessConns)
	return max((int64(descriptors)-int64(reserve))/2, minConnections)
}

// A connLimit is a listener with a bounded number of open connections. Connections beyond the limit
// are accepted, too, but get a 503 response and are closed: clients handle a response better than a
// hanging or reset connection. At most maxExcessConns of them are open at once, for excessTimeout
// each; the rest waits in the kernel's backlog, so any number of clients costs a fixed number of
// descriptors.
//
// Accept is for one goroutine; configure may be called by any.
type connLimit struct {
	net.Listener
	connCount   func() int // open connections of the server, excess ones included
	limit       atomic.Int64
	excess      chan struct{} // a semaphore: an element for each open excess connection
	refused     func()        // counts an excess connection
	fullLog     *throttledLog
	onExhausted func(error) // called when Accept fails for want of descriptors
}

// newConnLimit returns a connLimit around l. configure must be called before Accept: until then the
// limit is 0.
func newConnLimit(l net.Listener, connCount func() int, refused func(), e *exhaustion) *connLimit {
	return &connLimit{
		Listener:    l,
		connCount:   connCount,
		excess:      make(chan struct{}, maxExcessConns),
		refused:     refused,
		fullLog:     newThrottledLog(e.log, "client connections beyond the limit are refused; raise the descriptor limit (ulimit -n) or http.max_connections"),
		onExhausted: e.report,
	}
}

// configure sets the limit: the configured one, or the derived one if configured is 0. A lower
// limit closes no open connection.
func (l *connLimit) configure(configured int, log *slog.Logger) {
	derived := int64(math.MaxInt64)
	if n := maxDescriptors(); n > 0 {
		derived = deriveConnLimit(n)
	}
	if int64(configured) > derived {
		log.Warn("http.max_connections is more than the descriptor limit allows for; raise that (ulimit -n), or expect 503s",
			"configured", configured, "descriptors", maxDescriptors(), "allowed", derived)
	}
	l.limit.Store(cmp.Or(int64(configured), derived))
}

// Accept returns the next connection, as an *excessConn if beyond the limit. While maxExcessConns
// of those are open, Accept blocks.
func (l *connLimit) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		if tcp.Exhausted(err) {
			l.onExhausted(err)
		}
		return nil, err
	}
	// The server counts a connection before it accepts the next one, so the limit is exact. Excess
	// connections do not use up the room of others.
	limit := l.limit.Load()
	if int64(l.connCount()-len(l.excess)) < limit {
		return c, nil
	}
	l.refused()
	l.fullLog.warn("limit", limit)
	// Blocking here stops all accepting, on purpose: no descriptor is free for the next connection.
	// It lasts for excessTimeout at most.
	l.excess <- struct{}{}
	end := sync.OnceValue(func() error {
		defer func() { <-l.excess }()
		return c.Close()
	})
	return &excessConn{c, time.AfterFunc(excessTimeout, func() { end() }), end}, nil
}

// An excessConn is a connection beyond the limit. A timer closes the connection after
// excessTimeout. Any goroutine may call Close; only the first call has an effect.
type excessConn struct {
	net.Conn
	timer     *time.Timer
	closeOnce func() error
}

// CloseWrite closes the sending half. net/http calls it before Close, so that the client can read
// the response.
func (c *excessConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

func (c *excessConn) Close() error {
	c.timer.Stop()
	return c.closeOnce()
}

// excessKey is the context key of requests on excess connections.
type excessKey struct{}

// markExcess is the http.Server.ConnContext behind a connLimit. It marks the requests of excess
// connections for rejectExcess.
func markExcess(ctx context.Context, c net.Conn) context.Context {
	if encrypted, ok := c.(*tls.Conn); ok {
		c = encrypted.NetConn()
	}
	if _, ok := c.(*excessConn); ok {
		return context.WithValue(ctx, excessKey{}, true)
	}
	return ctx
}

// rejectExcess responds to a request on an excess connection and reports whether a response was
// written. Health checks are served instead: a merely busy process must not be restarted.
func rejectExcess(w http.ResponseWriter, r *http.Request) bool {
	if r.Context().Value(excessKey{}) == nil {
		return false
	}
	w.Header().Set("Connection", "close")
	if unloggedRoutes[r.URL.Path] {
		return false
	}
	toAPIError(errTooManyConnections).write(w, r)
	return true
}
