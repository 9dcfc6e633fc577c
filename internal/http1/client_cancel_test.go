package http1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

var errDisconnected = errors.New("the client hung up")

func TestClientContextEndReachesServer(t *testing.T) {
	const body = 64 << 20 // more than the socket buffers hold
	for phase, response := range map[string]string{
		"sending":             "",
		"before the response": "",
		"interim":             "HTTP/1.1 100 Continue\r\n\r\n",
		"in the header":       "HTTP/1.1 200 OK\r\n",
	} {
		t.Run(phase, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			gone := make(chan struct{})
			base := rawServer(t, func(_ int, c net.Conn) {
				r := bufio.NewReader(c)
				http.ReadRequest(r)
				if phase != "sending" {
					r.Discard(2)
				}
				io.WriteString(c, response)
				cancel(errDisconnected)
				discardUntilClosed(c)
				close(gone)
			})
			req := newPost(ctx, "/")
			if phase == "sending" {
				req = newRequest(ctx, http.MethodPost, "/", strings.Repeat("x", body))
			}
			if _, err := newTestClient(t, base).Do(req); err != errDisconnected {
				t.Errorf("it ended with %v", err)
			}
			<-gone
		})
	}
}

func TestClientContextEndEndsBody(t *testing.T) {
	for _, framing := range []string{"Content-Length: 9", "Transfer-Encoding: chunked", "Connection: close"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := make(chan struct{})
		base := rawServer(t, func(_ int, c net.Conn) {
			readWholeRequest(bufio.NewReader(c))
			io.WriteString(c, "HTTP/1.1 200 OK\r\n"+framing+"\r\n\r\n2\r\nab\r\n")
			discardUntilClosed(c)
			close(gone)
		})
		resp, err := newTestClient(t, base).Do(newPost(ctx, "/"))
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 64)
		if _, err := resp.Body.Read(buf); err != nil {
			t.Fatal(err)
		}
		cancel(errDisconnected)
		for err == nil {
			_, err = resp.Body.Read(buf)
		}
		if err != errDisconnected {
			t.Errorf("%s: it ended with %v", framing, err)
		}
		<-gone
		resp.Body.Close()
	}
}

// Closing the body stops the server, and must also wake a concurrent Read.
func TestClientBodyCloseReachesServerAndReader(t *testing.T) {
	gone := make(chan struct{})
	base := rawServer(t, func(_ int, c net.Conn) {
		readWholeRequest(bufio.NewReader(c))
		io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		discardUntilClosed(c)
		close(gone)
	})
	c := newTestClient(t, base)
	resp, err := c.Do(newPost(t.Context(), "/"))
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error)
	go func() {
		_, err := resp.Body.Read(make([]byte, 1))
		read <- err
	}()
	resp.Body.Close()
	if err := <-read; err != http.ErrBodyReadAfterClose {
		t.Errorf("the reader got %v", err)
	}
	if _, err := resp.Body.Read(make([]byte, 1)); err != http.ErrBodyReadAfterClose {
		t.Errorf("the next reader got %v", err)
	}
	<-gone
	if c.pool.popConn() != nil {
		t.Error("the connection is kept")
	}
}

func TestClientCancelledRequestIsNotSent(t *testing.T) {
	base, connections := cannedServer(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	c := newTestClient(t, base)
	mustRoundTrip(t, c)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errDisconnected)
	if _, err := c.Do(newPost(ctx, "/")); err != errDisconnected {
		t.Errorf("it ended with %v", err)
	}
	if n := len(connections()); n != 1 || idleConns(c) != 1 {
		t.Errorf("the server saw %d requests, %d connections are idle", n, idleConns(c))
	}
}

// By then the connection belongs to the next request.
func TestClientContextEndAfterResponseHasNoEffect(t *testing.T) {
	base, connections := cannedServer(t, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
	c := newTestClient(t, base)
	ctx, cancel := context.WithCancel(t.Context())
	resp, err := c.Do(newPost(ctx, "/"))
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, resp.Body)
	next, err := c.Do(newPost(t.Context(), "/"))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	resp.Body.Close()
	if body, err := io.ReadAll(next.Body); string(body) != "{}" || err != nil {
		t.Errorf("the next response is %q, %v", body, err)
	}
	mustRoundTrip(t, c)
	if seen := connections(); seen[2] != seen[0] {
		t.Errorf("requests came on the connections %v", seen)
	}
}

// The end of the context is half-closing the connection then, so it must not be reused.
func TestClientResponseEndingWithContextLeavesNoConnection(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var p connPool
	t.Cleanup(p.closePool)
	rt := newRoundTrip(newPost(ctx, "/"), newClientConn(&scriptConn{data: []byte(smallResponse)}), &p)
	rt.reusable = true
	if err := rt.receiveResponse(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if body, err := io.ReadAll(rt); string(body) != "{}" || err != nil {
		t.Errorf("the response is %q, %v", body, err)
	}
	if p.popConn() != nil {
		t.Error("the connection is kept")
	}
}
