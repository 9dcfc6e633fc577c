package ingress

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
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
	// maxSurplus is how many connections beyond the limit are open at once, each until it has been
	// told so. Accepting waits while there are as many.
	maxSurplus = 16
	// surplusTime is how long a connection beyond the limit may take to send a request and to read
	// the response to it.
	surplusTime = 2 * time.Second
	// minConnections is the lowest limit that is derived.
	minConnections = 8
)

// derivedConnections returns the limit of client connections for a process that may have so many
// descriptors open: two per connection, as each proxied request needs one for its client and one for
// its replica. An eighth, and no less than what connections beyond the limit need besides, is left
// for log files, probes, the admin listener and idle connections to replicas.
func derivedConnections(descriptors uint64) int64 {
	descriptors = min(descriptors, 1<<40)
	reserve := max(descriptors/8, 2*maxSurplus)
	return max((int64(descriptors)-int64(reserve))/2, minConnections)
}

// connLimit is a listener that bounds the number of open connections. One that is accepted beyond
// the limit is answered with 503 and closed, which a client understands better than a connection
// that hangs or is reset; at most maxSurplus of those are open at once, each for surplusTime at
// most, so that a crowd costs a fixed number of descriptors and waits in the kernel's backlog.
type connLimit struct {
	net.Listener
	open      func() int // connections that the server has, surplus ones included
	limit     atomic.Int64
	surplus   chan struct{} // an element for each open surplus connection
	refused   func()        // counts a surplus connection
	full      *exhaustionLog
	exhausted func(error) // hears of descriptors that ran out all the same
}

func newConnLimit(l net.Listener, open func() int, refused func(), e *exhaustion) *connLimit {
	return &connLimit{
		Listener:  l,
		open:      open,
		surplus:   make(chan struct{}, maxSurplus),
		refused:   refused,
		full:      newExhaustionLog(e.log, "client connections beyond the limit are refused; raise the descriptor limit (ulimit -n) or http.max_connections"),
		exhausted: e.report,
	}
}

// configure sets the limit to the configured one, or to the derived one if that is zero.
func (l *connLimit) configure(configured int, log *slog.Logger) {
	derived := int64(math.MaxInt64)
	if n := maxDescriptors(); n > 0 {
		derived = derivedConnections(n)
	}
	if int64(configured) > derived {
		log.Warn("http.max_connections is more than the descriptor limit allows for; raise that (ulimit -n), or expect 503s",
			"configured", configured, "descriptors", maxDescriptors(), "allowed", derived)
	}
	l.limit.Store(cmp.Or(int64(configured), derived))
}

// Accept returns the next connection; beyond the limit, a *surplusConn.
func (l *connLimit) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		if tcp.Exhausted(err) {
			l.exhausted(err)
		}
		return nil, err
	}
	limit := l.limit.Load()
	if int64(l.open()-len(l.surplus)) < limit {
		return c, nil
	}
	l.refused()
	l.full.warn("limit", limit)
	l.surplus <- struct{}{}
	end := sync.OnceValue(func() error {
		defer func() { <-l.surplus }()
		return c.Close()
	})
	return &surplusConn{c, time.AfterFunc(surplusTime, func() { end() }), end}, nil
}

// A surplusConn is a connection beyond the limit. It is closed after surplusTime.
type surplusConn struct {
	net.Conn
	timer *time.Timer
	end   func() error
}

// CloseWrite lets net/http end its half first, so that the client can read the response.
func (c *surplusConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

func (c *surplusConn) Close() error {
	c.timer.Stop()
	return c.end()
}

type surplusKey struct{}

// markSurplus is the ConnContext of a server behind a connLimit.
func markSurplus(ctx context.Context, c net.Conn) context.Context {
	if encrypted, ok := c.(*tls.Conn); ok {
		c = encrypted.NetConn()
	}
	if _, ok := c.(*surplusConn); ok {
		return context.WithValue(ctx, surplusKey{}, true)
	}
	return ctx
}

var errConnections = errors.New("The server has as many connections as it can take; try again later.")

// refuseSurplus answers a request on a connection beyond the limit. It reports whether it was one.
// Health checks are served: a process that has enough to do must not be restarted for it.
func refuseSurplus(w http.ResponseWriter, r *http.Request) bool {
	if r.Context().Value(surplusKey{}) == nil {
		return false
	}
	w.Header().Set("Connection", "close")
	if probes[r.URL.Path] {
		return false
	}
	answerFor(errConnections).write(w, r)
	return true
}
