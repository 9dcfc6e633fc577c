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

// Server serves HTTP as an http.Server does that it is made from, whose Handler, ReadHeaderTimeout, IdleTimeout and
// ErrorLog it goes by, and to which it gives every connection that is not plain. Listeners of TLS are that server's own.
type Server struct {
	fallback      *http.Server
	fallbackConns *fallbackListener
	date          dateCache

	stopping      atomic.Bool
	ticks         atomic.Uint32 // see sweep
	sweepInterval time.Duration
	goroutines    sync.WaitGroup

	mu       sync.Mutex
	conns    map[*serverConn]struct{}
	listener net.Listener
	sweeper  *time.Timer   // nil while there are no connections
	drained  chan struct{} // once stopping; closed when there are no connections
}

// NewServer makes a server that stands before fallback.
func NewServer(fallback *http.Server) *Server {
	return &Server{
		fallback:      fallback,
		fallbackConns: newFallbackListener(),
		conns:         make(map[*serverConn]struct{}),
		sweepInterval: max(min(orInfinite(fallback.ReadHeaderTimeout), orInfinite(fallback.IdleTimeout), time.Minute)/4, time.Millisecond),
	}
}

func orInfinite(d time.Duration) time.Duration {
	if d <= 0 {
		return 1<<63 - 1
	}
	return d
}

// Serve accepts connections until the listener fails, or Shutdown or Close is called: http.ErrServerClosed then. It is
// called once.
func (s *Server) Serve(l net.Listener) error {
	defer l.Close()
	if !s.startFallback(l) {
		return http.ErrServerClosed
	}
	for pause := time.Duration(0); ; {
		if s.stopping.Load() {
			return http.ErrServerClosed
		}
		nc, err := l.Accept()
		if err == nil {
			pause = 0
			s.startConn(nc)
			continue
		}
		if s.stopping.Load() {
			return http.ErrServerClosed
		}
		if ne, ok := errors.AsType[net.Error](err); !ok || !ne.Temporary() {
			return err
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second) // out of descriptors, perhaps
		s.logf("http: Accept error: %v; retrying in %v", err, pause)
		time.Sleep(pause)
	}
}

// start begins to serve; false if the server has been stopped before.
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

// accepted begins to serve a connection.
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

// track counts a connection in; false if the server stops, and it is closed.
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

// Connections returns the number of open connections that the server serves itself, those of the
// http.Server behind it not included.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

func (s *Server) untrack(c *serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if len(s.conns) == 0 && s.drained != nil {
		close(s.drained) // once: nothing is tracked any more
	}
	s.goroutines.Done()
}

// sweep moves the clock by one, and ends connections that have been at the same head, or idle, for too long. So nobody
// sets a timer per request; the price is that a bound may be passed by a quarter of the shortest and a bit.
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

// Shutdown stops accepting, ends connections on which no request is under way and waits for the others, whose answers say
// that the connection closes. It returns nil when that is done, or the error of ctx if that ends before.
func (s *Server) Shutdown(ctx context.Context) error {
	empty := s.beginStop(func(c *serverConn) {
		if seen := timedState(c.state.Load()); seen.state() == stateHeader || seen.state() == stateIdle {
			c.closeIf(seen)
		}
	})
	if err := s.fallback.Shutdown(ctx); err != nil {
		return err
	}
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends every connection at once, cancels the requests under way and returns when their handlers have, but for those
// of the server that it was made from.
func (s *Server) Close() error {
	s.beginStop(func(c *serverConn) {
		c.TCPConn.Close()
		c.onPeerClosed()
	})
	s.fallbackConns.Close()
	_ = s.fallback.Close()
	s.goroutines.Wait()
	return s.fallback.Close() // what it accepted meanwhile
}

// stop lets nothing new begin and does to each connection what is to be done. The channel is closed when there is none.
func (s *Server) beginStop(end func(*serverConn)) (empty <-chan struct{}) {
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

// handle runs the handler, and tells whether it returned. When it panics, what it has not flushed is not sent.
func (s *Server) runHandler(x *responseWriter) (returned bool) {
	defer func() {
		if cause := recover(); cause != nil && cause != http.ErrAbortHandler {
			s.logf("http: panic serving %v: %v\n%s", x.conn.remoteAddr, cause, debug.Stack())
		}
	}()
	s.fallback.Handler.ServeHTTP(x, x.request)
	return true
}

func (s *Server) logf(format string, args ...any) {
	if s.fallback.ErrorLog != nil {
		s.fallback.ErrorLog.Printf(format, args...)
		return
	}
	log.Printf(format, args...)
}
