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

var errHungUp = errors.New("the client hung up")

func TestTheEndOfTheContextReachesTheReplica(t *testing.T) {
	const body = 64 << 20 // more than sockets hold
	for phase, answer := range map[string]string{
		"sending":           "",
		"before the answer": "",
		"interim":           "HTTP/1.1 100 Continue\r\n\r\n",
		"in the head":       "HTTP/1.1 200 OK\r\n",
	} {
		t.Run(phase, func(t *testing.T) {
			ctx, hangUp := context.WithCancelCause(t.Context())
			gone := make(chan struct{})
			base := rawServer(t, func(_ int, c net.Conn) {
				r := bufio.NewReader(c)
				http.ReadRequest(r)
				if phase != "sending" {
					r.Discard(2)
				}
				io.WriteString(c, answer)
				hangUp(errHungUp)
				discardUntilClosed(c)
				close(gone)
			})
			req := newPost(ctx, "/")
			if phase == "sending" {
				req = newRequest(ctx, http.MethodPost, "/", strings.Repeat("x", body))
			}
			if _, err := newTestClient(t, base).Do(req); err != errHungUp {
				t.Errorf("it ended with %v", err)
			}
			<-gone
		})
	}
}

func TestTheEndOfTheContextEndsAnAnswer(t *testing.T) {
	for _, framing := range []string{"Content-Length: 9", "Transfer-Encoding: chunked", "Connection: close"} {
		ctx, hangUp := context.WithCancelCause(t.Context())
		gone := make(chan struct{})
		base := rawServer(t, func(_ int, c net.Conn) {
			readRequest(bufio.NewReader(c))
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
		hangUp(errHungUp)
		for err == nil {
			_, err = resp.Body.Read(buf)
		}
		if err != errHungUp {
			t.Errorf("%s: it ended with %v", framing, err)
		}
		<-gone
		resp.Body.Close()
	}
}

// It is the way to stop a replica, and it must also wake who reads.
func TestClosingTheBodyReachesTheReplicaAndTheReader(t *testing.T) {
	gone := make(chan struct{})
	base := rawServer(t, func(_ int, c net.Conn) {
		readRequest(bufio.NewReader(c))
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
		t.Errorf("the reader was told %v", err)
	}
	if _, err := resp.Body.Read(make([]byte, 1)); err != http.ErrBodyReadAfterClose {
		t.Errorf("the next reader was told %v", err)
	}
	<-gone
	if c.pool.popConn() != nil {
		t.Error("the connection is kept")
	}
}

func TestARequestThatIsGoneAlreadyIsNotSent(t *testing.T) {
	base, connections := cannedServer(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	c := newTestClient(t, base)
	mustRoundTrip(t, c)
	ctx, hangUp := context.WithCancelCause(t.Context())
	hangUp(errHungUp)
	if _, err := c.Do(newPost(ctx, "/")); err != errHungUp {
		t.Errorf("it ended with %v", err)
	}
	if n := len(connections()); n != 1 || idleConns(c) != 1 {
		t.Errorf("the replica saw %d requests, %d connections are idle", n, idleConns(c))
	}
}

// The connection belongs to the next request by then.
func TestTheEndOfTheContextAfterTheAnswerTouchesNothing(t *testing.T) {
	base, connections := cannedServer(t, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
	c := newTestClient(t, base)
	ctx, hangUp := context.WithCancel(t.Context())
	resp, err := c.Do(newPost(ctx, "/"))
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, resp.Body)
	next, err := c.Do(newPost(t.Context(), "/"))
	if err != nil {
		t.Fatal(err)
	}
	hangUp()
	resp.Body.Close()
	if body, err := io.ReadAll(next.Body); string(body) != "{}" || err != nil {
		t.Errorf("the next answer is %q, %v", body, err)
	}
	mustRoundTrip(t, c)
	if seen := connections(); seen[2] != seen[0] {
		t.Errorf("requests came on the connections %v", seen)
	}
}

// The end of the context is closing the connection by then, so nobody else may have it.
func TestAnAnswerThatEndsWithTheContextLeavesNoConnection(t *testing.T) {
	ctx, hangUp := context.WithCancel(t.Context())
	var p connPool
	t.Cleanup(p.close)
	rt := newRoundTrip(newPost(ctx, "/"), newClientConn(&scriptConn{data: []byte(smallResponse)}), &p)
	rt.reusable = true
	if err := rt.receive(); err != nil {
		t.Fatal(err)
	}
	hangUp()
	if body, err := io.ReadAll(rt); string(body) != "{}" || err != nil {
		t.Errorf("the answer is %q, %v", body, err)
	}
	if p.popConn() != nil {
		t.Error("the connection is kept")
	}
}
