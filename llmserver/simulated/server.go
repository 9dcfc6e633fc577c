package simulated

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// A Server serves an Engine over HTTP/1.1 on a port of its own.
type Server struct {
	engine *Engine
	url    string
	http   http.Server
	serve  sync.WaitGroup // the accepting goroutine
	conns  sync.WaitGroup // those of the connections
}

// Listen starts an engine and a server at the address; "127.0.0.1:0" selects a free port. The
// caller must call Close or Shutdown.
func Listen(address string, config Config) (*Server, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	s := &Server{engine: New(config), url: "http://" + listener.Addr().String()}
	s.http.Handler = s.engine.Handler()
	s.http.IdleTimeout = 5 * time.Minute
	s.http.ConnState = s.trackConn
	s.serve.Go(func() { s.http.Serve(listener) })
	return s, nil
}

// URL returns the base URL of the API, without /v1.
func (s *Server) URL() string { return s.url }

// Engine returns the engine behind the server.
func (s *Server) Engine() *Engine { return s.engine }

// Close ends the server like a crash, by closing all open connections. Close waits for every
// goroutine; a second call does nothing.
func (s *Server) Close() {
	s.http.Close()
	s.serve.Wait()
	s.http.Close() // a connection accepted during the first call
	s.engine.Close()
	s.conns.Wait()
}

// Shutdown stops accepting, lets the requests in flight finish until the context ends, and then
// calls Close. It returns the context's error.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	s.Close()
	return err
}

// trackConn counts connections. net/http reports a new connection on the accepting goroutine, so
// none is added after the end of that goroutine.
func (s *Server) trackConn(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.engine.connections.Add(1)
		s.conns.Add(1)
	case http.StateClosed, http.StateHijacked:
		s.conns.Done()
	}
}
