package ingress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"berth/internal/http1"
	"berth/internal/tcp"
)

const (
	// readHeaderTimeout bounds the time for a client to send a request header.
	readHeaderTimeout = 10 * time.Second
	// keepAliveTimeout bounds the idle time of a client's connection. Load generators keep idle
	// connections for 300 s; a longer bound lets them close first, so none of their requests meets
	// a closing connection.
	keepAliveTimeout = 330 * time.Second
)

// A listener is an HTTP server with an address of its own.
//
// Life cycle: newListener listens, serve accepts, close aborts. front may be replaced, and Listener
// wrapped, between newListener and serve.
type listener struct {
	net.Listener
	socket    syscall.RawConn // of the listening socket, for its options
	server    *http.Server
	front     httpServer     // accepts the connections: server, or an http1.Server around it
	serving   sync.WaitGroup // the accept goroutine
	conns     sync.WaitGroup // connections of server
	openConns atomic.Int64   // the same, as a number
	requests  sync.WaitGroup // handlers, which may outlive their connection
}

// httpServer is the common interface of http.Server and http1.Server.
type httpServer interface {
	Serve(net.Listener) error
	Shutdown(context.Context) error
	Close() error
}

// newListener listens on address. Connections wait in the backlog until serve is called.
func newListener(address string, h http.Handler, log *slog.Logger) (*listener, error) {
	ln, err := tcp.Listen(address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	l := &listener{Listener: ln}
	if l.socket, err = ln.(*net.TCPListener).SyscallConn(); err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", address, err)
	}
	l.server = &http.Server{
		// Handlers are counted here, in the outermost wrapper, since h2 handlers may outlive their
		// connection.
		Handler: http1.ResetAborted(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			l.requests.Add(1)
			defer l.requests.Done()
			if !rejectExcess(w, r) {
				h.ServeHTTP(w, r)
			}
		})),
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       keepAliveTimeout,
		MaxHeaderBytes:    http1.ReadHeaderBytes,
		Protocols:         new(http.Protocols),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 1000},
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ConnState:         l.trackConn,
		ConnContext:       markExcess,
	}
	l.server.Protocols.SetHTTP1(true)
	l.server.Protocols.SetUnencryptedHTTP2(true)
	l.front = l.server
	return l, nil
}

// setSendTimeout bounds the time for which the kernel waits for a client that reads nothing, on
// connections accepted from now on. Open connections keep their bound. l may be nil.
func (l *listener) setSendTimeout(timeout time.Duration) {
	if l != nil {
		_ = tcp.SetSendTimeout(l.socket, timeout) // fails only on a closed listener
	}
}

// serve starts to accept connections on a goroutine that close waits for. serve does not block. If
// the listener fails other than by close, the error is sent on failed, which must have room for
// one.
func (l *listener) serve(failed chan<- error) {
	l.serving.Go(func() {
		serve := l.front.Serve
		if l.server.TLSConfig != nil {
			serve = func(ln net.Listener) error { return l.server.ServeTLS(ln, "", "") }
		}
		if err := serve(l.Listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("listening on %s: %w", l.Addr(), err)
		}
	})
}

// trackConn counts the connections of server. net/http calls it from the connections' goroutines.
func (l *listener) trackConn(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		l.conns.Add(1)
		l.openConns.Add(1)
	case http.StateClosed, http.StateHijacked:
		l.conns.Done()
		l.openConns.Add(-1)
	}
}

// connCount returns the number of open connections, including those handled by http1.Server itself.
// Any goroutine may call it.
func (l *listener) connCount() int {
	n := int(l.openConns.Load())
	if plain, ok := l.front.(*http1.Server); ok {
		n += plain.Connections()
	}
	return n
}

// close closes every connection and blocks until their handlers have returned. The order of the
// waits matters: the accept goroutine adds connections, and connections add requests, so each wait
// group is waited for only after its last Add.
func (l *listener) close() {
	l.front.Close()
	l.Listener.Close()
	l.serving.Wait()
	l.front.Close() // a connection that was accepted during the first Close
	l.conns.Wait()
	l.requests.Wait()
}
