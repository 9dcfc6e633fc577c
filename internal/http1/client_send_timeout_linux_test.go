package http1

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/tcp"
)

// largeUpload exceeds the socket buffers.
var largeUpload = strings.Repeat("x", 32<<20)

func newClientWithSendTimeout(t *testing.T, base string, sendTimeout time.Duration) *Client {
	t.Helper()
	c := newTestClient(t, base)
	c.SetOptions(ClientOptions{ConnectTimeout: 5 * time.Second, SendTimeout: sendTimeout})
	return c
}

func TestClientSendTimeoutEndsUpload(t *testing.T) {
	gone := make(chan struct{})
	base := rawServer(t, func(_ int, c net.Conn) {
		c.Read(make([]byte, 1000))
		<-gone
	})
	defer close(gone)
	_, _, err := roundTripBody(newClientWithSendTimeout(t, base, 250*time.Millisecond), newRequest(t.Context(), http.MethodPost, "/", largeUpload))
	if !errors.Is(err, tcp.ErrSendTimeout) {
		t.Errorf("the error is %v, want tcp.ErrSendTimeout", err)
	}
}

// The pauses of the server together exceed the timeout, each of them does not.
func TestClientSendTimeoutSparesSlowReader(t *testing.T) {
	const timeout = 2 * time.Second
	base := rawServer(t, func(_ int, c net.Conn) {
		r := bufio.NewReader(c)
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		for range 8 {
			<-time.After(timeout * 3 / 20)
			io.CopyN(io.Discard, req.Body, 3<<20)
		}
		io.Copy(io.Discard, req.Body)
		io.WriteString(c, smallResponse)
	})
	if resp, _, err := roundTripBody(newClientWithSendTimeout(t, base, timeout), newRequest(t.Context(), http.MethodPost, "/", largeUpload)); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("the response is %v, %v", resp, err)
	}
}

// Sent data may wait in the kernel for a server that pauses, until the response begins.
func TestClientUserTimeoutIsRaisedDuringUpload(t *testing.T) {
	base, _ := cannedServer(t, smallResponse)
	c := newClientWithSendTimeout(t, base, 2*time.Minute)
	for _, body := range []string{"{}", largeUpload[:1<<20], "{}", largeUpload[:1<<20]} {
		rt, err := c.startRequest(newRequest(t.Context(), http.MethodPost, "/", body))
		if err != nil {
			t.Fatal(err)
		}
		want := 30_000
		if len(body) > singleWriteMax {
			want = 180_000
		}
		for deadline := time.Now().Add(10 * time.Second); ; <-time.After(uploadPoll / 10) {
			got := userTimeoutOf(t, rt.conn)
			if got == want {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("before the response to %d bytes the user timeout is %d ms, want %d", len(body), got, want)
			}
		}
		if err := rt.receiveResponse(); err != nil {
			t.Fatal(err)
		}
		if got := userTimeoutOf(t, rt.conn); got != 30_000 {
			t.Errorf("with the response to %d bytes the user timeout is %d ms, want 30000", len(body), got)
		}
		io.Copy(io.Discard, rt)
	}
}

// userTimeoutOf returns the TCP_USER_TIMEOUT of a connection, see tcp(7).
func userTimeoutOf(t *testing.T, c *clientConn) (ms int) {
	t.Helper()
	var failed error
	err := c.raw.Control(func(fd uintptr) { ms, failed = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, 0x12) })
	if err = errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	return ms
}
