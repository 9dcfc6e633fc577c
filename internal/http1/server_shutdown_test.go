package http1

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

func TestServerShutdownClosesIdleAndWaitsForActive(t *testing.T) {
	arrived, proceed := make(chan struct{}), make(chan struct{})
	s := serve(t, func(_ *testServer, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/begun" {
			writeStrings(w, "begun")
			flushWriter(w)
		}
		if r.URL.Path != "/quick" {
			arrived <- struct{}{}
			<-proceed
		}
		writeStrings(w, "done")
	})
	fresh, used, within := s.dial(t), s.dial(t), s.dial(t)
	busy, begun, other := s.dial(t), s.dial(t), s.dial(t)
	io.WriteString(used, "GET /quick HTTP/1.1\r\nHost: h\r\n\r\n")
	io.ReadFull(used, make([]byte, 100))
	io.WriteString(within, "GET /within HTTP/1.1\r\nHo")
	io.WriteString(busy, "GET /busy HTTP/1.1\r\nHost: h\r\n\r\n")
	receiveFrom(t, arrived)
	io.WriteString(begun, "GET /begun HTTP/1.1\r\nHost: h\r\n\r\n")
	receiveFrom(t, arrived)
	io.WriteString(other, "POST /other HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
	receiveFrom(t, arrived)
	over := make(chan error, 1)
	go func() { over <- s.http1Server().Shutdown(t.Context()) }()
	for _, c := range []net.Conn{fresh, used, within} {
		if rest, err := io.ReadAll(c); err != nil || strings.Contains(string(rest), "HTTP") {
			t.Errorf("a connection without a request got %q, %v", rest, err)
		}
	}
	if _, err := net.Dial("tcp", s.address); err == nil {
		t.Error("a connection is accepted after Shutdown")
	}
	select {
	case err := <-over:
		t.Errorf("Shutdown returned before the requests ended: %v", err)
	default:
	}
	for range 3 {
		proceed <- struct{}{}
	}
	for i, c := range []net.Conn{busy, begun, other} {
		responses := readResponses(c)
		if len(responses) != 1 || responses[0].Err != "" || !strings.HasSuffix(responses[0].Body, "done") || i == 0 && !responses[0].Close {
			t.Errorf("request %d got %s", i, formatResponses(responses))
		}
	}
	if err := receiveFrom(t, over); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

func TestServerShutdownEndsWithContext(t *testing.T) {
	arrived := make(chan struct{})
	s := serve(t, func(_ *testServer, w http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	})
	c := s.dial(t)
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	receiveFrom(t, arrived)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.http1Server().Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	s.server.Close() // closes the connection
	if responses := readResponses(c); len(responses) != 0 {
		t.Errorf("got %s", formatResponses(responses))
	}
	if err := s.http1Server().Shutdown(t.Context()); err != nil {
		t.Errorf("when the requests have ended: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.http1Server().Serve(l); !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve of a closed server: %v", err)
	}
}

func TestServerShutdownWaitsForFallback(t *testing.T) {
	arrived, proceed := make(chan struct{}), make(chan struct{})
	s := serve(t, func(_ *testServer, w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-proceed
		writeStrings(w, "done")
	})
	c := s.dial(t)
	io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
	receiveFrom(t, arrived)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.http1Server().Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("while the request is active: %v", err)
	}
	close(proceed)
	if responses := readResponses(c); len(responses) != 1 || responses[0].Body != "done" {
		t.Errorf("got %s", formatResponses(responses))
	}
	if err := s.http1Server().Shutdown(t.Context()); err != nil {
		t.Errorf("when the request has ended: %v", err)
	}
}

func TestFallbackListenerClosesConnectionsOnceClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client := (&testServer{address: l.Addr().String()}).dial(t)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	o := newFallbackListener()
	o.Close()
	o.handOffConn(c)
	if _, err := client.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("got %v", err)
	}
}

func TestServerServeReturnsErrServerClosed(t *testing.T) {
	for name, stop := range map[string]func(*Server) error{
		"Shutdown": func(s *Server) error { return s.Shutdown(t.Context()) },
		"Close":    (*Server).Close,
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := NewServer(netHTTPServer(t, http.NotFoundHandler()))
		served := make(chan error, 1)
		go func() { served <- s.Serve(l) }()
		if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
			io.ReadAll(c) // the server does serve
			c.Close()
		}
		if err := stop(s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := receiveFrom(t, served); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("after %s Serve returned %v", name, err)
		}
		s.Close()
	}
}

// A lateListener accepts its one connection while it is being closed.
type lateListener struct {
	net.Listener
	conn      net.Conn
	accepting chan struct{}
	closing   func()
	closed    <-chan struct{}
}

func (l *lateListener) Close() error { l.closing(); return nil }

func (l *lateListener) Accept() (c net.Conn, err error) {
	if c, l.conn = l.conn, nil; c == nil {
		return nil, net.ErrClosed
	}
	close(l.accepting)
	<-l.closed
	return c, nil
}

func TestServerShutdownClosesConnectionAcceptedMeanwhile(t *testing.T) {
	for name, request := range map[string]string{"silent": "", "with a request": "GET / HTTP/1.1\r\nHost: h\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			inner, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer inner.Close()
			client := (&testServer{address: inner.Addr().String()}).dial(t)
			io.WriteString(client, request)
			closed, closing := context.WithCancel(t.Context())
			l := &lateListener{Listener: inner, accepting: make(chan struct{}), closing: closing, closed: closed.Done()}
			if l.conn, err = inner.Accept(); err != nil {
				t.Fatal(err)
			}
			s := NewServer(netHTTPServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeStrings(w, "served") })))
			defer s.Close()
			served := make(chan error, 1)
			go func() { served <- s.Serve(l) }()
			receiveFrom(t, l.accepting)
			if err := s.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			receiveFrom(t, served)
			if got, err := io.ReadAll(client); len(got) > 0 || errors.Is(err, os.ErrDeadlineExceeded) { // a reset will do
				t.Errorf("got %q and %v", got, err)
			}
		})
	}
}
