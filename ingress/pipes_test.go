package ingress

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
)

// pipes is a listener of in-memory connections, for servers in virtual time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error { close(p.closed); return nil }

func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	server, client := net.Pipe()
	p.conns <- server
	return client, nil
}

// serveOverPipes runs handler behind in-memory connections and returns a client of it.
func serveOverPipes(t *testing.T, h2c bool, handler http.HandlerFunc) (*http.Client, pipes) {
	listener := pipes{make(chan net.Conn), make(chan struct{})}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!h2c)
	protocols.SetUnencryptedHTTP2(h2c)
	server := &http.Server{Handler: handler, Protocols: protocols}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	transport := &http.Transport{DialContext: listener.dial, Protocols: protocols}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
		running.Wait()
	})
	return &http.Client{Transport: transport}, listener
}
