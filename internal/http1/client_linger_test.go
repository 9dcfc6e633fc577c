package http1

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// abortCases are the ways to abort a request. Each sends one, waits for abort to be closed, aborts
// the request and returns when the caller may release its slot.
var abortCases = map[string]struct {
	response string // what the server sends before the abort
	run      func(t *testing.T, c *Client, abort <-chan struct{})
}{
	"uploading":           {"", abortDo(strings.Repeat("x", 16<<20))},
	"before the response": {"", abortDo("{}")},
	"in the header":       {"HTTP/1.1 200 OK\r\n", abortDo("{}")},
	"by context, chunked": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", abortBody(true)},
	"by context, length":  {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", abortBody(true)},
	"by Close":            {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", abortBody(false)},
	"malformed":           {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz", abortBody(false)},
}

func abortDo(body string) func(*testing.T, *Client, <-chan struct{}) {
	return func(t *testing.T, c *Client, abort <-chan struct{}) {
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			<-abort
			cancel(errDisconnected)
		}()
		if _, err := c.Do(newRequest(ctx, http.MethodPost, "/", body)); err != errDisconnected {
			t.Errorf("Do = %v", err)
		}
	}
}

func abortBody(byContext bool) func(*testing.T, *Client, <-chan struct{}) {
	return func(t *testing.T, c *Client, abort <-chan struct{}) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		resp, err := c.Do(newPost(ctx, "/"))
		if err != nil {
			t.Error(err)
			return
		}
		resp.Body.Read(make([]byte, 64))
		<-abort
		if byContext {
			cancel(errDisconnected)
			if _, err := io.ReadAll(resp.Body); err != errDisconnected {
				t.Errorf("the body ended with %v", err)
			}
		}
		resp.Body.Close()
	}
}

// abortLingering aborts a request. heard gets the error with which the server's read then ended.
// The server sends more and closes its side when letGo is closed. done is closed when the caller
// may release its slot.
func abortLingering(t *testing.T, name string) (heard <-chan error, letGo chan<- struct{}, done <-chan struct{}) {
	heardOf, letGoOf, doneOf, abort := make(chan error, 1), make(chan struct{}), make(chan struct{}), make(chan struct{})
	how := abortCases[name]
	base := rawServer(t, func(_ int, c net.Conn) {
		r := bufio.NewReader(c)
		if _, err := http.ReadRequest(r); err != nil {
			t.Error(err)
		}
		if name != "uploading" {
			r.Discard(2)
		}
		io.WriteString(c, how.response)
		close(abort)
		_, err := io.Copy(io.Discard, r)
		heardOf <- err
		io.WriteString(c, strings.Repeat("y", 100_000)) // still on its way at the disconnect
		<-letGoOf
	})
	go func() {
		defer close(doneOf)
		how.run(t, newTestClient(t, base), abort)
	}()
	return heardOf, letGoOf, doneOf
}

// A server that has not closed its side may still be working on the request.
func TestClientAbortWaitsForServerClose(t *testing.T) {
	for name := range abortCases {
		t.Run(name, func(t *testing.T) {
			heard, letGo, done := abortLingering(t, name)
			if err := <-heard; err != nil { // only the sending half is closed, so there is no reset
				t.Errorf("the server read %v instead of the end", err)
			}
			select {
			case <-done:
				t.Error("the slot was released before the server had closed its side")
			case <-time.After(20 * time.Millisecond):
			}
			close(letGo)
			<-done
		})
	}
}

func TestClientAbortReturnsAfterLingerTimeout(t *testing.T) {
	for name := range abortCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			heard, letGo, done := abortLingering(t, name)
			defer close(letGo)
			<-heard
			<-done
		})
	}
}

// A reset connection leaves nothing to wait for.
func TestClientDoesNotLingerForDeadServer(t *testing.T) {
	base := rawServer(t, func(_ int, c net.Conn) {
		readWholeRequest(bufio.NewReader(c))
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab")
		c.(*net.TCPConn).SetLinger(0)
	})
	c := newTestClient(t, base)
	fastest := time.Hour
	for range 10 { // a busy machine may delay some of them
		began := time.Now()
		if resp, err := c.Do(newPost(t.Context(), "/")); err == nil {
			if _, err := io.ReadAll(resp.Body); err == nil {
				t.Error("the response looks complete")
			}
			resp.Body.Close()
		}
		fastest = min(fastest, time.Since(began))
	}
	if fastest >= clientLingerTimeout {
		t.Errorf("every request to a dead server took %v or more", fastest)
	}
}

// Some servers respond to a disconnect, or end their response properly. Neither is the response to
// the request.
func TestClientIgnoresResponseToDisconnect(t *testing.T) {
	const header = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, before := range []string{"", header} {
		for range 200 {
			began := make(chan struct{})
			base := rawServer(t, func(_ int, c net.Conn) {
				r := bufio.NewReader(c)
				readWholeRequest(r)
				io.WriteString(c, before)
				close(began)
				io.Copy(io.Discard, r)
				io.WriteString(c, strings.TrimPrefix(header, before)+"2\r\nno\r\n0\r\n\r\n")
			})
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				<-began
				cancel(errDisconnected)
			}()
			if _, body, err := roundTripBody(newTestClient(t, base), newPost(ctx, "/")); err != errDisconnected || body != "" {
				t.Fatalf("after %q: %q, %v", before, body, err)
			}
		}
	}
}
