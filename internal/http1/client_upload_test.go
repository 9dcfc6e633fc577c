package http1

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
)

// A stuckConn is a connection whose server stops reading and responds.
type stuckConn struct {
	net.Conn
	client, server *net.TCPConn
	taken          int // bytes that can still be sent
	writes         int // that timed out
	respond        func()
}

func (s *stuckConn) SyscallConn() (syscall.RawConn, error) { return s.client.SyscallConn() }

func (s *stuckConn) Write(p []byte) (int, error) {
	if s.taken > 0 {
		n := min(s.taken, len(p))
		if s.taken -= n; n == len(p) {
			return n, nil
		}
		return n, os.ErrDeadlineExceeded
	}
	if s.writes++; s.writes == 2 {
		s.respond()
	}
	if s.writes > 100 {
		return 0, io.ErrClosedPipe // the upload should have stopped
	}
	return 0, os.ErrDeadlineExceeded
}

// tcpPair returns both ends of a loopback connection.
func tcpPair(t *testing.T) (client, server *net.TCPConn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); r.Close() })
	return c.(*net.TCPConn), r.(*net.TCPConn)
}

// The server stops reading within the last piece of the body and refuses the request. Unread data
// is still on its way, so the connection must not be reused.
func TestClientBlockedUploadEndsWithResponse(t *testing.T) {
	const size = 3 * singleWriteMax
	body := strings.Repeat("x", size)
	for name, c := range map[string]struct {
		request func() *http.Request
		room    int // after the header, for the body
	}{
		"read":      {func() *http.Request { return newRequest(t.Context(), http.MethodPost, "/", body) }, size},
		"in memory": {func() *http.Request { return newMemoryPost(t, size, body) }, 0},
	} {
		for _, taken := range []int{0, 10, size - 1} {
			client, server := tcpPair(t)
			s := &stuckConn{Conn: client, client: client, server: server, taken: taken}
			conn := newClientConn(s)
			s.respond = func() {
				io.WriteString(server, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
				for conn.noPendingData() { // until it has arrived
				}
			}
			rt := newRoundTrip(c.request(), conn, &connPool{closed: true})
			if err := rt.sendRequest(make([]byte, 0, c.room)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if s.writes > 2 || rt.reusable {
				t.Errorf("%s, stuck after %d bytes: %d writes timed out, the connection is kept: %t", name, taken, s.writes, rt.reusable)
			}
			if err := rt.receiveResponse(); err != nil || rt.response.StatusCode != http.StatusRequestEntityTooLarge {
				t.Errorf("%s, stuck after %d bytes: %s, %v", name, taken, rt.response.Status, err)
			}
		}
	}
}

// A reader may return io.EOF with its last bytes.
func TestClientRequestBodyMayReturnEOFWithData(t *testing.T) {
	base, connections := cannedServer(t, smallResponse)
	c := newTestClient(t, base)
	for range 2 {
		req := newPost(t.Context(), "/")
		req.Body = io.NopCloser(iotest.DataErrReader(strings.NewReader("{}")))
		if _, _, err := roundTripBody(c, req); err != nil {
			t.Fatal(err)
		}
	}
	if seen := connections(); seen[1] != 0 {
		t.Errorf("the requests came on the connections %v", seen)
	}
}

// The client has disconnected, so the body cannot be read. That is no fault of the server.
func TestClientRequestBodyErrorAfterCancelIsTheCause(t *testing.T) {
	base, _ := cannedServer(t, smallResponse)
	ctx, cancel := context.WithCancelCause(t.Context())
	req := newPost(ctx, "/")
	req.Body = io.NopCloser(readerFunc(func([]byte) (int, error) {
		cancel(errDisconnected)
		return 0, errors.New("the body is gone")
	}))
	if _, err := newTestClient(t, base).Do(req); err != errDisconnected {
		t.Errorf("Do = %v", err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestClientInvalidRequestKeepsConnection(t *testing.T) {
	base, connections := cannedServer(t, smallResponse)
	c := newTestClient(t, base)
	mustRoundTrip(t, c)
	req := newPost(t.Context(), "/")
	req.Header.Set("X", "a\nb")
	if _, _, err := roundTripBody(c, req); err == nil {
		t.Fatal("it was sent")
	}
	mustRoundTrip(t, c)
	if seen := connections(); idleConns(c) != 1 || seen[1] != seen[0] {
		t.Errorf("%d connections are idle; the requests came on %v", idleConns(c), seen)
	}
}

// A halfCloseConn is a connection whose sending half can be closed. Its reads return the given
// errors.
type halfCloseConn struct {
	closeCounter
	reads []error
}

func (h *halfCloseConn) CloseWrite() error { return nil }

func (h *halfCloseConn) Read([]byte) (int, error) {
	if len(h.reads) == 0 {
		return 0, io.EOF
	}
	err := h.reads[0]
	h.reads = h.reads[1:]
	return 0, err
}

// A concurrent halfClose sets the read deadline to the past. That ends neither the wait nor the
// server's work.
func TestClientLingerSurvivesConcurrentHalfClose(t *testing.T) {
	h := &halfCloseConn{reads: []error{os.ErrDeadlineExceeded, nil, os.ErrDeadlineExceeded}}
	newClientConn(h).lingeringClose()
	if len(h.reads) != 0 {
		t.Errorf("it returned before the server had closed its side: %d reads were left", len(h.reads))
	}
	if h.closes != 1 {
		t.Errorf("the connection was closed %d times", h.closes)
	}
}

func TestConnPoolCountsIdleTimeFromLastUse(t *testing.T) {
	base, connections := cannedServer(t, smallResponse)
	c := newTestClient(t, base)
	mustRoundTrip(t, c)
	for range 3 {
		c.pool.idle[0].idleSince = c.pool.idle[0].idleSince.Add(-idleTimeout / 2)
		mustRoundTrip(t, c)
	}
	if seen := connections(); seen[3] != 0 {
		t.Errorf("the requests came on the connections %v", seen)
	}
}
