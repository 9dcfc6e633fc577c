package body

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
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

// echoBody responds with the body that was read, or with the error.
func echoBody(o *Options) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b, err := Read(w, r, o)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		defer b.Release()
		_, _ = w.Write(b.Bytes())
	}
}

func options(maxBytes, budget int64) *Options {
	return &Options{MaxBytes: maxBytes, IdleTimeout: 30 * time.Second, Budget: NewBudget(budget)}
}

// upload returns the whole response, or the error of the transport.
func upload(client *http.Client, length int64, body io.Reader) string {
	req, err := http.NewRequest("POST", "http://berth/", body)
	if err != nil {
		panic(err)
	}
	req.ContentLength = length
	resp, err := client.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}

func bothProtocols(t *testing.T, run func(t *testing.T, h2c bool)) {
	t.Run("HTTP/1.1", func(t *testing.T) { synctest.Test(t, func(t *testing.T) { run(t, false) }) })
	t.Run("h2c", func(t *testing.T) { synctest.Test(t, func(t *testing.T) { run(t, true) }) })
}
