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

// aborts are the ways to abort a request. Each begins one, calls ready when the replica has it, waits
// for abort to be closed, aborts the request and returns when its slot may be given back.
var abortCases = map[string]struct {
	answer string // what the replica sends before the abort
	run    func(t *testing.T, c *Client, abort <-chan struct{})
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
			cancel(errHungUp)
		}()
		if _, err := c.Do(newRequest(ctx, http.MethodPost, "/", body)); err != errHungUp {
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
			cancel(errHungUp)
			if _, err := io.ReadAll(resp.Body); err != errHungUp {
				t.Errorf("the body ended with %v", err)
			}
		}
		resp.Body.Close()
	}
}

// lingering has a request aborted. The replica hears of it, sends still more and closes its side when
// letGo is closed. done is closed when the caller may give the slot back.
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
		io.WriteString(c, how.answer)
		close(abort)
		_, err := io.Copy(io.Discard, r)
		heardOf <- err
		io.WriteString(c, strings.Repeat("y", 100_000)) // of what was under way when the disconnect came
		<-letGoOf
	})
	go func() {
		defer close(doneOf)
		how.run(t, newTestClient(t, base), abort)
	}()
	return heardOf, letGoOf, doneOf
}

// An engine that has not closed its side may still be working on the request.
func TestAnAbortedRequestHoldsItsSlotUntilTheReplicaHasLetGo(t *testing.T) {
	for name := range abortCases {
		t.Run(name, func(t *testing.T) {
			heard, letGo, done := abortLingering(t, name)
			if err := <-heard; err != nil { // the sending half alone is closed, so it is no reset
				t.Errorf("the replica read %v in place of the end", err)
			}
			select {
			case <-done:
				t.Error("the slot was given back before the replica had closed its side")
			case <-time.After(20 * time.Millisecond):
			}
			close(letGo)
			<-done
		})
	}
}

func TestAReplicaThatDoesNotLetGoIsLeftAfterAWhile(t *testing.T) {
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

// Nothing is to be waited for there.
func TestADeadReplicaIsNotLingeredFor(t *testing.T) {
	base := rawServer(t, func(_ int, c net.Conn) {
		readRequest(bufio.NewReader(c))
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab")
		c.(*net.TCPConn).SetLinger(0)
	})
	c := newTestClient(t, base)
	fastest := time.Hour
	for range 10 { // of which a busy machine may delay some
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
		t.Errorf("every request to a dead replica took %v or more", fastest)
	}
}

// Some servers answer a disconnect, or end their response properly. Nobody may take that for the
// response to the request.
func TestWhatAReplicaSaysToADisconnectIsNoResponse(t *testing.T) {
	const header = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, before := range []string{"", header} {
		for range 200 {
			began := make(chan struct{})
			base := rawServer(t, func(_ int, c net.Conn) {
				r := bufio.NewReader(c)
				readRequest(r)
				io.WriteString(c, before)
				close(began)
				io.Copy(io.Discard, r)
				io.WriteString(c, strings.TrimPrefix(header, before)+"2\r\nno\r\n0\r\n\r\n")
			})
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				<-began
				cancel(errHungUp)
			}()
			if _, body, err := roundTripBody(newTestClient(t, base), newPost(ctx, "/")); err != errHungUp || body != "" {
				t.Fatalf("after %q: %q, %v", before, body, err)
			}
		}
	}
}
