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

// stuck is a connection whose replica reads nothing any more, and responds instead.
type stuckConn struct {
	net.Conn
	client, replica *net.TCPConn
	taken           int // bytes that were sent before
	writes          int // that came to nothing
	respond         func()
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
		return 0, io.ErrClosedPipe // it should have been given up
	}
	return 0, os.ErrDeadlineExceeded
}

// pair is a loopback connection, seen from both ends.
func tcpPair(t *testing.T) (client, replica *net.TCPConn) {
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

// The replica stops reading within the last piece of the body, and refuses. What it has not read is still on its way, so
// the connection is of no more use.
func TestUploadThatHangsIsGivenUpWhenTheReplicaResponds(t *testing.T) {
	const size = 3 * singleWriteMax
	body := strings.Repeat("x", size)
	for name, c := range map[string]struct {
		request func() *http.Request
		room    int // behind the header, for what is read of the body
	}{
		"read":      {func() *http.Request { return newRequest(t.Context(), http.MethodPost, "/", body) }, size},
		"in memory": {func() *http.Request { return newMemoryPost(t, size, body) }, 0},
	} {
		for _, taken := range []int{0, 10, size - 1} {
			client, replica := tcpPair(t)
			s := &stuckConn{Conn: client, client: client, replica: replica, taken: taken}
			conn := newClientConn(s)
			s.respond = func() {
				io.WriteString(replica, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
				for conn.noPendingData() { // it has not arrived
				}
			}
			rt := newRoundTrip(c.request(), conn, &connPool{closed: true})
			if err := rt.sendRequest(make([]byte, 0, c.room)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if s.writes > 2 || rt.reusable {
				t.Errorf("%s, stuck after %d bytes: %d writes in vain, the connection is kept: %t", name, taken, s.writes, rt.reusable)
			}
			if err := rt.receive(); err != nil || rt.response.StatusCode != http.StatusRequestEntityTooLarge {
				t.Errorf("%s, stuck after %d bytes: %s, %v", name, taken, rt.response.Status, err)
			}
		}
	}
}

// A reader may return its end with its last bytes.
func TestBodyWhoseEndComesWithItsLastBytesIsSent(t *testing.T) {
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

// Its client has gone, so its body cannot be read: nothing is wrong with the replica.
func TestBodyThatBreaksOffWithItsContextIsNoBrokenConnection(t *testing.T) {
	base, _ := cannedServer(t, smallResponse)
	ctx, cancel := context.WithCancelCause(t.Context())
	req := newPost(ctx, "/")
	req.Body = io.NopCloser(readerFunc(func([]byte) (int, error) {
		cancel(errHungUp)
		return 0, errors.New("the body is gone")
	}))
	if _, err := newTestClient(t, base).Do(req); err != errHungUp {
		t.Errorf("Do = %v", err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestRequestThatCannotBeWrittenCostsNoConnection(t *testing.T) {
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

// halves is a connection whose sending half can be closed. It reads what it is told.
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

// A hang-up at the same moment sets the read deadline to the past, which is neither the end of the wait nor of the
// replica's work.
func TestLingerWaitsOnWhereAHangUpEndsItsReadAndThenCloses(t *testing.T) {
	h := &halfCloseConn{reads: []error{os.ErrDeadlineExceeded, nil, os.ErrDeadlineExceeded}}
	newClientConn(h).lingeringClose()
	if len(h.reads) != 0 {
		t.Errorf("it ended before the replica had closed its side: %d more reads were to come", len(h.reads))
	}
	if h.closes != 1 {
		t.Errorf("the connection was closed %d times", h.closes)
	}
}

func TestConnectionIsIdleFromItsLastUse(t *testing.T) {
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
