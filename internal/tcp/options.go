package tcp

import (
	"context"
	"errors"
	"math"
	"net"
	"os"
	"syscall"
	"time"
)

// When is a connection given up whose peer has vanished without a word? These decide it on every
// connection that berth accepts or makes; the kernel's own defaults are hours and a quarter of one.
//
// A silent connection is probed after 10 s, and every 4 s until a probe is acknowledged. On Linux it
// ends at the first moment for a probe at which nothing has been heard for userTimeout:
//
//	silent since   0     10    14    18    22    26    30 s
//	               |     probe probe probe probe probe end
//
// So five probes in a row must be lost, over 16 s; one or two that a busy or broken network loses
// cost nothing. (The kernel goes by the user timeout then and not by Count, which says the same
// elsewhere: 10 s + 5 × 4 s.) Data that is sent and not acknowledged ends the connection after
// userTimeout too, during which it is sent again seven times or so. See SetSendTimeout for a peer
// that is there and reads nothing.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 4 * time.Second, Count: 5}

// userTimeout is TCP_USER_TIMEOUT of tcp(7).
const userTimeout = 30 * time.Second

// Listen listens on a TCP address. Accepted connections end when their peer has vanished.
func Listen(address string) (net.Listener, error) {
	l := net.ListenConfig{Control: control, KeepAliveConfig: keepAlive}
	return l.Listen(context.Background(), "tcp", address)
}

// Dialer makes connections within timeout, which end when their peer has vanished.
func Dialer(timeout time.Duration) net.Dialer {
	return net.Dialer{Timeout: timeout, Control: control, KeepAliveConfig: keepAlive}
}

// control sets what a socket needs before it listens or connects; accepted connections inherit it.
func control(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) { failed = setUserTimeout(fd, userTimeout) })
	if err != nil {
		return err
	}
	return failed
}

// SetSendTimeout has the kernel wait for a peer that reads nothing, but acknowledges that, for longer
// than the timeout by which who writes to it gives it up: half as long again. The kernel has one
// limit for both, a peer that reads nothing and one that has vanished, so the latter may take as
// long to be noticed. On a listener it holds for connections that are accepted from then on; 0 takes
// it back.
func SetSendTimeout(c syscall.RawConn, timeout time.Duration) error {
	timeout = max(userTimeout, min(timeout, math.MaxInt32*time.Millisecond/2)*3/2)
	var failed error
	if err := c.Control(func(fd uintptr) { failed = setUserTimeout(fd, timeout) }); err != nil {
		return err
	}
	return failed
}

// ErrSendTimeout: the peer read nothing for the time that a write may take.
var ErrSendTimeout = errors.New("the peer stopped reading")

// WithSendTimeout returns c with writes that fail with ErrSendTimeout when the peer reads nothing for
// the timeout. It is for short writes: of a record of TLS, or of a buffer.
func WithSendTimeout(c *net.TCPConn, timeout time.Duration) net.Conn {
	if raw, err := c.SyscallConn(); err == nil {
		_ = SetSendTimeout(raw, timeout) // fails on a closed connection only
	}
	return &sending{c, timeout}
}

type sending struct {
	net.Conn
	timeout time.Duration
}

func (s *sending) Write(p []byte) (int, error) {
	if err := s.SetWriteDeadline(time.Now().Add(s.timeout)); err != nil {
		return 0, err
	}
	n, err := s.Conn.Write(p)
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT) {
		err = ErrSendTimeout
	}
	return n, err
}
