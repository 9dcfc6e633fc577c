package http1

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// A Server serves simple HTTP/1.1 connections and hands all others over to the wrapped http.Server,
// whose Handler, ReadHeaderTimeout, IdleTimeout and ErrorLog apply to both. TLS listeners belong to
// the http.Server alone. All methods may be called from any goroutine.
type Server struct {
	fallback      *http.Server
	fallbackConns *fallbackListener
	date          dateCache

	stopping      atomic.Bool
	ticks         atomic.Uint32 // number of sweeps: the clock of connection states
	sweepInterval time.Duration
	goroutines    sync.WaitGroup // of connections, and of the fallback

	mu       sync.Mutex
	conns    map[*serverConn]struct{}
	listener net.Listener
	sweeper  *time.Timer   // nil without connections
	drained  chan struct{} // nil until stopping; closed without connections
}

// NewServer returns a Server that wraps fallback.
func NewServer(fallback *http.Server) *Server {
	return &Server{
		fallback:      fallback,
		fallbackConns: newFallbackListener(),
		conns:         make(map[*serverConn]struct{}),
		sweepInterval: max(min(orInfinite(fallback.ReadHeaderTimeout), orInfinite(fallback.IdleTimeout), time.Minute)/4, time.Millisecond),
	}
}

// orInfinite returns d, or the longest duration if d means no timeout.
func orInfinite(d time.Duration) time.Duration {
	if d <= 0 {
		return 1<<63 - 1
	}
	return d
}

// Serve accepts connections, and starts a goroutine for each, until the listener fails, or until
// Shutdown or Close is called. The error is http.ErrServerClosed in the second case. Temporary
// errors of the listener are logged and retried. Serve closes the listener, does not wait for the
// connections, and may be called once.
func (s *Server) Serve(l net.Listener) error {
	defer l.Close()
	if !s.startFallback(l) {
		return http.ErrServerClosed
	}
	for backoff := time.Duration(0); ; {
		if s.stopping.Load() {
			return http.ErrServerClosed
		}
		nc, err := l.Accept()
		if err == nil {
			backoff = 0
			s.startConn(nc)
			continue
		}
		if s.stopping.Load() {
			return http.ErrServerClosed
		}
		if ne, ok := errors.AsType[net.Error](err); !ok || !ne.Temporary() {
			return err
		}
		backoff = min(max(2*backoff, 5*time.Millisecond), time.Second) // no descriptors left, perhaps
		s.logf("http: Accept error: %v; retrying in %v", err, backoff)
		time.Sleep(backoff)
	}
}

// startFallback starts the fallback server in a separate goroutine. It returns false if the server
// has been stopped.
func (s *Server) startFallback(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping.Load() {
		return false
	}
	s.listener, s.fallbackConns.address = l, l.Addr()
	s.goroutines.Go(func() { _ = s.fallback.Serve(s.fallbackConns) })
	return true
}

// startConn starts the goroutine of an accepted connection. If a disconnect cannot be watched for,
// the connection is handed over instead, which blocks until the fallback server accepts it.
func (s *Server) startConn(nc net.Conn) {
	if tcp, ok := nc.(*net.TCPConn); ok {
		if c, err := newServerConn(s, tcp); err == nil {
			if s.trackConn(c) {
				go c.serveConn()
			}
			return
		}
	}
	s.fallbackConns.handOffConn(nc)
}

// trackConn adds a connection. If the server is stopping, trackConn closes the connection and
// returns false.
func (s *Server) trackConn(c *serverConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping.Load() {
		c.watch.Stop()
		c.TCPConn.Close()
		return false
	}
	s.goroutines.Add(1)
	s.conns[c] = struct{}{}
	if s.sweeper == nil {
		s.sweeper = time.AfterFunc(s.sweepInterval, s.sweepConns)
	}
	return true
}

// untrackConn removes a connection at the end of the goroutine of the connection. Called exactly
// once after each successful trackConn.
func (s *Server) untrackConn(c *serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if len(s.conns) == 0 && s.drained != nil {
		close(s.drained) // once, because trackConn adds none while stopping
	}
	s.goroutines.Done()
}

// Connections returns the number of open connections served by s, without the connections of the
// wrapped http.Server.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// sweepConns advances the clock by one tick and closes connections that have been idle, or reading
// a header, for too long. The timer calls sweepConns and is armed only while there are connections.
// One timer for all connections costs nothing per request; in return a connection may exceed a
// timeout by a little more than a quarter of the shortest timeout.
func (s *Server) sweepConns() {
	now := s.ticks.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		seen := timedState(c.state.Load())
		age := time.Duration(int32(now-seen.since())-1) * s.sweepInterval // at least
		if seen.state() == stateHeader && age >= orInfinite(s.fallback.ReadHeaderTimeout) ||
			seen.state() == stateIdle && age >= orInfinite(s.fallback.IdleTimeout) {
			c.closeIf(seen)
		}
	}
	s.sweeper = nil
	if len(s.conns) > 0 {
		s.sweeper = time.AfterFunc(s.sweepInterval, s.sweepConns)
	}
}

// Shutdown stops accepting, closes connections without an active request and waits for the others,
// whose responses announce the end of the connection. Shutdown blocks until all are closed and then
// returns nil, or returns the error of ctx if ctx ends first. A further call waits again.
func (s *Server) Shutdown(ctx context.Context) error {
	drained := s.beginStop(func(c *serverConn) {
		if seen := timedState(c.state.Load()); seen.state() == stateHeader || seen.state() == stateIdle {
			c.closeIf(seen)
		}
	})
	if err := s.fallback.Shutdown(ctx); err != nil {
		return err
	}
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close closes all connections at once, cancels the active requests and blocks until their handlers
// have returned, except for handlers of the wrapped http.Server. So a handler must not call Close.
// Close may be called after Shutdown, and more than once.
func (s *Server) Close() error {
	s.beginStop(func(c *serverConn) {
		c.TCPConn.Close()
		c.onPeerClosed()
	})
	s.fallbackConns.Close()
	_ = s.fallback.Close()
	s.goroutines.Wait()
	return s.fallback.Close() // connections accepted meanwhile
}

// beginStop closes the listener, so no connection is added any more, and calls end for each
// existing connection. The caller of beginStop must not hold mu; end is called with mu held and
// must not block. The returned channel, the same at each call, is closed when no connection is
// left.
func (s *Server) beginStop(end func(*serverConn)) (drained <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping.Store(true)
	if s.listener != nil {
		s.listener.Close()
	}
	for c := range s.conns {
		end(c)
	}
	if s.drained == nil {
		s.drained = make(chan struct{})
		if len(s.conns) == 0 {
			close(s.drained)
		}
	}
	return s.drained
}

// runHandler runs the handler, in the goroutine of the connection, and reports whether the handler
// returned. After a panic pending bytes are not sent. The panic is logged, unless the cause is
// http.ErrAbortHandler.
func (s *Server) runHandler(w *responseWriter) (returned bool) {
	defer func() {
		if cause := recover(); cause != nil && cause != http.ErrAbortHandler {
			s.logf("http: panic serving %v: %v\n%s", w.conn.remoteAddr, cause, debug.Stack())
		}
	}()
	s.fallback.Handler.ServeHTTP(w, w.request)
	return true
}

func (s *Server) logf(format string, args ...any) {
	if s.fallback.ErrorLog != nil {
		s.fallback.ErrorLog.Printf(format, args...)
		return
	}
	log.Printf(format, args...)
}
