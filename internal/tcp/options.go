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

// keepAlive decides, together with userTimeout, when a connection to a vanished peer ends: on every
// connection that berth accepts or makes. The kernel's own defaults are hours and a quarter of one.
//
// A silent connection is probed after 10 s, and every 4 s until a probe is acknowledged. On Linux
// the connection ends at the first probe time with userTimeout of silence:
//
//	silent since   0     10    14    18    22    26    30 s
//	               |     probe probe probe probe probe end
//
// So five probes in a row must be lost, over 16 s; one or two losses on a busy or broken network
// cost nothing. (Linux then goes by the user timeout and ignores Count, which means the same on
// other systems: 10 s + 5 × 4 s.) Unacknowledged data also ends the connection after userTimeout,
// during which the kernel retransmits about seven times. SetSendTimeout is for peers that are alive
// and read nothing.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 4 * time.Second, Count: 5}

// userTimeout is TCP_USER_TIMEOUT of tcp(7).
const userTimeout = 30 * time.Second

// Listen listens on a TCP address. Accepted connections end with an error after their peer has
// vanished.
func Listen(address string) (net.Listener, error) {
	l := net.ListenConfig{Control: control, KeepAliveConfig: keepAlive}
	return l.Listen(context.Background(), "tcp", address)
}

// Dialer returns a dialer with a connect timeout. Its connections end with an error after their
// peer has vanished.
func Dialer(timeout time.Duration) net.Dialer {
	return net.Dialer{Timeout: timeout, Control: control, KeepAliveConfig: keepAlive}
}

// control sets the user timeout of a socket before listen or connect; accepted connections inherit
// the timeout.
func control(_, _ string, c syscall.RawConn) error { return controlUserTimeout(c, userTimeout) }

// SetSendTimeout makes the kernel keep a connection whose peer acknowledges data but reads nothing
// for longer than timeout, after which the writer is expected to give up: half as long again, and
// at least userTimeout. The kernel has one limit for such peers and for vanished ones, so detecting
// the latter may take as long. A listener's timeout applies to connections accepted afterwards. A
// timeout of 0 restores the default.
func SetSendTimeout(c syscall.RawConn, timeout time.Duration) error {
	return controlUserTimeout(c, max(userTimeout, min(timeout, math.MaxInt32*time.Millisecond/2)*3/2))
}

func controlUserTimeout(c syscall.RawConn, timeout time.Duration) error {
	var optErr error
	if err := c.Control(func(fd uintptr) { optErr = setUserTimeout(fd, timeout) }); err != nil {
		return err
	}
	return optErr
}

// ErrSendTimeout is the error of a write during which the peer read nothing for the send timeout.
var ErrSendTimeout = errors.New("the peer stopped reading")

// WithSendTimeout returns c with writes that fail with ErrSendTimeout if they take longer than
// timeout. Each write should be short, such as a TLS record or one buffer: the timeout is for all
// of it.
func WithSendTimeout(c *net.TCPConn, timeout time.Duration) net.Conn {
	if raw, err := c.SyscallConn(); err == nil {
		_ = SetSendTimeout(raw, timeout) // fails on a closed connection only
	}
	return &sendTimeoutConn{c, timeout}
}

type sendTimeoutConn struct {
	net.Conn
	timeout time.Duration
}

// Write implements net.Conn. It replaces the connection's write deadline.
func (c *sendTimeoutConn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.timeout)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT) {
		err = ErrSendTimeout
	}
	return n, err
}
