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

	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/tcp"
)

const (
	// maxSurplus is how many connections beyond the limit are open at once, each until it has been
	// told so. Accepting waits while there are as many.
	maxExcessConns = 16
	// surplusTime is how long a connection beyond the limit may take to send a request and to read
	// the response to it.
	excessTimeout = 2 * time.Second
	// minConnections is the lowest limit that is derived.
	minConnections = 8
)

// derivedConnections returns the limit of client connections for a process that may have so many
// descriptors open: two per connection, as each proxied request needs one for its client and one for
// its replica. An eighth, and no less than what connections beyond the limit need besides, is left
// for log files, probes, the admin listener and idle connections to replicas.
func deriveConnLimit(descriptors uint64) int64 {
	descriptors = min(descriptors, 1<<40)
	reserve := max(descriptors/8, 2*maxExcessConns)
	return max((int64(descriptors)-int64(reserve))/2, minConnections)
}

// connLimit is a listener that bounds the number of open connections. One that is accepted beyond
// the limit is answered with 503 and closed, which a client understands better than a connection
// that hangs or is reset; at most maxSurplus of those are open at once, each for surplusTime at
// most, so that a crowd costs a fixed number of descriptors and waits in the kernel's backlog.
type connLimit struct {
	net.Listener
	connCount   func() int // connections that the server has, surplus ones included
	limit       atomic.Int64
	excess      chan struct{} // an element for each open surplus connection
	refused     prometheus.Counter
	fullLog     *throttledLog
	onExhausted func(error) // hears of descriptors that ran out all the same
}

func newConnLimit(l net.Listener, open func() int, r prometheus.Registerer, e *exhaustion) *connLimit {
	c := &connLimit{
		Listener:  l,
		connCount: open,
		excess:    make(chan struct{}, maxExcessConns),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_connections_refused_total", Help: "Client connections beyond the limit, which were told so and closed.",
		}),
		fullLog:     newThrottledLog(e.log, "client connections beyond the limit are refused; raise the descriptor limit (ulimit -n) or http.max_connections"),
		onExhausted: e.report,
	}
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f)
	}
	r.MustRegister(c.refused,
		gauge("berth_connections", "Open connections of clients.", func() float64 { return float64(open()) }),
		gauge("berth_connections_limit", "How many there may be at once.", func() float64 { return float64(c.limit.Load()) }))
	return c
}

// configure sets the limit to the configured one, or to the derived one if that is zero.
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

// Accept returns the next connection; beyond the limit, a *surplusConn.
func (l *connLimit) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		if tcp.Exhausted(err) {
			l.onExhausted(err)
		}
		return nil, err
	}
	limit := l.limit.Load()
	if int64(l.connCount()-len(l.excess)) < limit {
		return c, nil
	}
	l.refused.Inc()
	l.fullLog.warn("limit", limit)
	l.excess <- struct{}{}
	end := sync.OnceValue(func() error {
		defer func() { <-l.excess }()
		return c.Close()
	})
	return &excessConn{c, time.AfterFunc(excessTimeout, func() { end() }), end}, nil
}

// A surplusConn is a connection beyond the limit. It is closed after surplusTime.
type excessConn struct {
	net.Conn
	timer     *time.Timer
	closeOnce func() error
}

// CloseWrite lets net/http end its half first, so that the client can read the response.
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

type excessKey struct{}

// markSurplus is the ConnContext of a server behind a connLimit.
func markExcess(ctx context.Context, c net.Conn) context.Context {
	if encrypted, ok := c.(*tls.Conn); ok {
		c = encrypted.NetConn()
	}
	if _, ok := c.(*excessConn); ok {
		return context.WithValue(ctx, excessKey{}, true)
	}
	return ctx
}

var errTooManyConnections = errors.New("The server has as many connections as it can take; try again later.")

// refuseSurplus answers a request on a connection beyond the limit. It reports whether it was one.
// Health checks are served: a process that has enough to do must not be restarted for it.
func rejectExcess(w http.ResponseWriter, r *http.Request) bool {
	if r.Context().Value(excessKey{}) == nil {
		return false
	}
	w.Header().Set("Connection", "close")
	if probes[r.URL.Path] {
		return false
	}
	toAPIError(errTooManyConnections).write(w, r)
	return true
}
