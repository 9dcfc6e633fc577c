package discovery

import (
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// tlsServer is an apiServer with HTTP/2 whose connections can freeze: they stay open, and nothing
// comes over them any more.
type tlsServer struct {
	*apiServer
	mu    sync.Mutex
	conns []*frozenConn
}

// frozenConn is a connection that, once frozen, swallows what is written.
type frozenConn struct {
	net.Conn
	frozen chan struct{}
}

func (c *frozenConn) Write(p []byte) (int, error) {
	select {
	case <-c.frozen:
		return len(p), nil
	default:
		return c.Conn.Write(p)
	}
}

func newTLSServer(t *testing.T) *tlsServer {
	s := &tlsServer{apiServer: newAPIServer(t)}
	s.server.Close()
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	unstarted := httptest.NewUnstartedServer(nil) // for the certificate
	unstarted.EnableHTTP2 = true
	unstarted.StartTLS()
	config := unstarted.TLS.Clone()
	unstarted.Close()
	s.server = &http.Server{Handler: s, TLSConfig: config}
	s.serve = func(c net.Conn) {
		frozen := &frozenConn{c, make(chan struct{})}
		s.mu.Lock()
		s.conns = append(s.conns, frozen)
		s.mu.Unlock()
		l.deliver(frozen)
	}
	go s.server.ServeTLS(l, "", "")
	return s
}

func (s *tlsServer) freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		close(c.frozen)
	}
	s.conns = nil
}

func (s *tlsServer) tlsCluster() *cluster {
	s.t.Helper()
	c, err := connect(&rest.Config{
		Host: "https://api", Dial: s.dial, TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}, "ns")
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}
