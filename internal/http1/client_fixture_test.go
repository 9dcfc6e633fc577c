package http1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/internal/tcp"
)

// newTestClient returns a client whose idle connections are closed when the test ends.
func newTestClient(t testing.TB, base string) *Client {
	t.Helper()
	c, err := NewClient(base, ClientOptions{ConnectTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// newRequest returns a request with a body that can be read once.
func newRequest(ctx context.Context, method, path, body string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, method, path, io.NopCloser(strings.NewReader(body)))
	if err != nil {
		panic(err)
	}
	req.ContentLength = int64(len(body))
	return req
}

func newPost(ctx context.Context, path string) *http.Request {
	return newRequest(ctx, http.MethodPost, path, `{}`)
}

// roundTripBody sends a request and reads the complete response.
func roundTripBody(c *Client, req *http.Request) (*http.Response, string, error) {
	resp, err := c.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

// mustRoundTrip sends a request and fails the test if that fails.
func mustRoundTrip(t *testing.T, c *Client) (*http.Response, string) {
	t.Helper()
	resp, body, err := roundTripBody(c, newPost(t.Context(), "/"))
	if err != nil {
		t.Fatal(err)
	}
	return resp, body
}

// rawServer accepts connections for serve, which gets each of them with its number, from 0.
func rawServer(t testing.TB, serve func(n int, c net.Conn)) (base string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				serve(n, c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	return "http://" + l.Addr().String()
}

// cannedServer sends the same response to every request. connections returns, for each request so
// far, the number of its connection.
func cannedServer(t testing.TB, response string) (base string, connections func() []int) {
	var mu sync.Mutex
	var seen []int
	base = rawServer(t, func(n int, c net.Conn) {
		for r := bufio.NewReader(c); readWholeRequest(r); {
			mu.Lock()
			seen = append(seen, n)
			mu.Unlock()
			io.WriteString(c, response)
		}
	})
	return base, func() []int {
		mu.Lock()
		defer mu.Unlock()
		return seen
	}
}

// readWholeRequest reads one complete request. It reports whether it could.
func readWholeRequest(r *bufio.Reader) bool {
	req, err := http.ReadRequest(r)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

// discardUntilClosed returns when the client has closed the connection.
func discardUntilClosed(c net.Conn) { io.Copy(io.Discard, c) }

// wantNoAddress fails the test if an error's text contains the address of the server.
func wantNoAddress(t *testing.T, err error, base string) {
	t.Helper()
	u, _ := url.Parse(base)
	for _, secret := range []string{u.Hostname(), u.Port()} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error %q contains the address %s", err, u.Host)
		}
	}
}

// A failure classifies the error of a request.
type failure string

const (
	failureNone            failure = "none" // no *Error
	failureNotConnected    failure = "not connected"
	failureStale           failure = "stale connection"
	failureBroken          failure = "broken connection"
	failureTimeout         failure = "timeout"
	failureInvalidResponse failure = "invalid response"
)

func failureOf(err error) failure {
	e, ok := errors.AsType[*Error](err)
	switch {
	case !ok:
		return failureNone
	case !e.Connected:
		return failureNotConnected
	case e.ResponseBegun:
		return failureInvalidResponse
	case e.Timeout(), errors.Is(err, tcp.ErrSendTimeout):
		return failureTimeout
	case e.Stale():
		return failureStale
	default:
		return failureBroken
	}
}

// wantFailure fails the test unless err is an *Error of class want.
func wantFailure(t *testing.T, err error, want failure) {
	t.Helper()
	if got := failureOf(err); got != want {
		t.Errorf("the error is %v: %s; want %s", err, got, want)
	}
}

// A scriptConn is a connection from which the test's bytes are read.
type scriptConn struct {
	net.Conn
	data     []byte
	maxRead  int // bytes per read; 0 means no limit
	finalErr error

	writeErr error
	deadline time.Time // of writes
}

func (s *scriptConn) Read(p []byte) (int, error) {
	if len(s.data) == 0 {
		if s.finalErr != nil {
			return 0, s.finalErr
		}
		return 0, io.EOF
	}
	if s.maxRead > 0 {
		p = p[:min(len(p), s.maxRead)]
	}
	n := copy(p, s.data)
	s.data = s.data[n:]
	return n, nil
}

func (s *scriptConn) Write(p []byte) (int, error)         { return len(p), s.writeErr }
func (s *scriptConn) SetWriteDeadline(at time.Time) error { s.deadline = at; return nil }
func (s *scriptConn) SetReadDeadline(time.Time) error     { return nil }
func (s *scriptConn) Close() error                        { return nil }

// newScriptedRoundTrip returns a round trip whose response is read from s.
func newScriptedRoundTrip(method string, s *scriptConn) *roundTrip {
	rt := newRoundTrip(newRequest(context.Background(), method, "/", ""), newClientConn(s), &connPool{closed: true})
	rt.reusable = true
	return rt
}

// receiveScripted returns a round trip whose response header was read from s, and the error of
// that.
func receiveScripted(method string, s *scriptConn) (*roundTrip, error) {
	rt := newScriptedRoundTrip(method, s)
	return rt, rt.receiveResponse()
}
