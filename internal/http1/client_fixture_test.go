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

// dial is a client whose idle connections end with the test.
func newTestClient(t testing.TB, base string) *Client {
	t.Helper()
	c, err := NewClient(base, ClientOptions{ConnectTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// request makes the request that the ingress would: a body that cannot be had twice.
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

// do sends a request and reads the answer whole.
func roundTripBody(c *Client, req *http.Request) (*http.Response, string, error) {
	resp, err := c.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

// mustDo is do where nothing may go wrong.
func mustRoundTrip(t *testing.T, c *Client) (*http.Response, string) {
	t.Helper()
	resp, body, err := roundTripBody(c, newPost(t.Context(), "/"))
	if err != nil {
		t.Fatal(err)
	}
	return resp, body
}

// rawServer speaks for itself: serve gets each connection and how many came before.
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

// answers serves every request on a connection with the same bytes, and tells which connection it came on.
func cannedServer(t testing.TB, answer string) (base string, connections func() []int) {
	var mu sync.Mutex
	var seen []int
	base = rawServer(t, func(n int, c net.Conn) {
		for r := bufio.NewReader(c); readRequest(r); {
			mu.Lock()
			seen = append(seen, n)
			mu.Unlock()
			io.WriteString(c, answer)
		}
	})
	return base, func() []int {
		mu.Lock()
		defer mu.Unlock()
		return seen
	}
}

// readRequest reads one whole request.
func readRequest(r *bufio.Reader) bool {
	req, err := http.ReadRequest(r)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

// untilGone returns when the other side has closed the connection.
func discardUntilClosed(c net.Conn) { io.Copy(io.Discard, c) }

// wantNoAddress fails if an error's text would tell a client where a replica is.
func wantNoAddress(t *testing.T, err error, base string) {
	t.Helper()
	u, _ := url.Parse(base)
	for _, secret := range []string{u.Hostname(), u.Port()} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error %q tells the address %s", err, u.Host)
		}
	}
}

// A failure is what an error says about a request.
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

// wantFailure fails the test unless err is an *Error that says want.
func wantFailure(t *testing.T, err error, want failure) {
	t.Helper()
	if got := failureOf(err); got != want {
		t.Errorf("the error is %v: %s; want %s", err, got, want)
	}
}

// A script is a connection that reads as it is told.
type scriptConn struct {
	net.Conn
	data     []byte
	maxRead  int // at most this many in one read; 0 for no bound
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

// begun is an exchange whose answer is a script.
func newScriptedRoundTrip(method string, s *scriptConn) *roundTrip {
	rt := newRoundTrip(newRequest(context.Background(), method, "/", ""), newClientConn(s), &connPool{closed: true})
	rt.reusable = true
	return rt
}

// scripted is the answer that a script makes, once its head was read. The error is that of the head.
func receiveScripted(method string, s *scriptConn) (*roundTrip, error) {
	rt := newScriptedRoundTrip(method, s)
	return rt, rt.receive()
}
