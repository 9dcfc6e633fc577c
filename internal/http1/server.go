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

// Server handles simple HTTP/1.1 connections itself and hands all others over to the http.Server it
// wraps. It uses that server's Handler, ReadHeaderTimeout, IdleTimeout and ErrorLog. It does not do
// TLS: a listener of TLS belongs to the http.Server alone.
type Server struct {
	fallback      *http.Server
	fallbackConns *fallbackListener
	date          dateCache

	stopping      atomic.Bool
	ticks         atomic.Uint32 // sweeps so far, the time that connection states are stamped with
	sweepInterval time.Duration
	goroutines    sync.WaitGroup // of connections, and of the fallback

	mu       sync.Mutex
	conns    map[*serverConn]struct{}
	listener net.Listener
	sweeper  *time.Timer   // nil while there are no connections
	drained  chan struct{} // nil until stopping; closed when there are no connections
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

// Serve accepts connections until the listener fails, or until Shutdown or Close is called, when it
// returns http.ErrServerClosed. It may be called once.
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

// startFallback starts the fallback server. It returns false if the server has been stopped.
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

// startConn starts the goroutine of an accepted connection, or hands the connection over if its
// disconnect cannot be watched for.
func (s *Server) startConn(nc net.Conn) {
	if tcp, ok := nc.(*net.TCPConn); ok {
		if c, err := newServerConn(s, tcp); err == nil {
			if s.track(c) {
				go c.serve()
			}
			return
		}
	}
	s.fallbackConns.handOff(nc)
}

// track adds a connection. If the server is stopping, it closes the connection and returns false.
func (s *Server) track(c *serverConn) bool {
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
		s.sweeper = time.AfterFunc(s.sweepInterval, s.sweep)
	}
	return true
}

// untrack removes a connection whose goroutine ends.
func (s *Server) untrack(c *serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if len(s.conns) == 0 && s.drained != nil {
		close(s.drained) // once, since no connection is added while stopping
	}
	s.goroutines.Done()
}

// Connections returns the number of open connections that the server serves itself, without those of
// the http.Server it wraps.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// sweep advances the clock by one tick and closes connections that have been reading a header, or
// idle, for too long. One timer for all connections costs nothing per request; in return a timeout
// may be exceeded by a little more than a quarter of the shortest one.
func (s *Server) sweep() {
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
		s.sweeper = time.AfterFunc(s.sweepInterval, s.sweep)
	}
}

// Shutdown stops accepting, closes connections without an active request and waits for the others,
// whose responses announce that the connection closes. It returns nil when all are closed, or the
// error of ctx if that ends first.
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

// Close closes all connections at once and cancels the active requests. It returns when their
// handlers have returned, except for those of the http.Server it wraps.
func (s *Server) Close() error {
	s.beginStop(func(c *serverConn) {
		c.TCPConn.Close()
		c.onPeerClosed()
	})
	s.fallbackConns.Close()
	_ = s.fallback.Close()
	s.goroutines.Wait()
	return s.fallback.Close() // connections that it accepted meanwhile
}

// beginStop closes the listener, so that no connection is added, and calls end for each existing one.
// The returned channel is closed when there are none.
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

// runHandler runs the handler and reports whether it returned. If it panics, what it has not flushed
// is not sent. The panic is logged, unless it is http.ErrAbortHandler.
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
