package http1

import (
	"context"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fullBacklog returns the URL of a listener whose backlog is full: connecting to it neither
// succeeds nor fails.
func fullBacklog(t *testing.T) (base string) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
	filler, err := net.Dial("tcp", address) // fills the backlog
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { filler.Close() })
	return "http://" + address
}

func TestClientContextEndEndsConnect(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(errDisconnected) })
	if _, err := newTestClient(t, fullBacklog(t)).Do(newPost(ctx, "/")); err != errDisconnected {
		t.Errorf("it ended with %v", err)
	}
}

func TestClientFullBacklogIsNotConnected(t *testing.T) {
	c := newTestClient(t, fullBacklog(t))
	c.SetOptions(ClientOptions{ConnectTimeout: 20 * time.Millisecond})
	_, err := c.Do(newPost(t.Context(), "/"))
	wantFailure(t, err, failureNotConnected)
	if !strings.Contains(err.Error(), "timed out") {
		t.Errorf("the error is %v", err)
	}
}
