package llmserver

import (
	"context"
	"net"
	"syscall"
	"time"
)

// peerTimeout is how long data may go unacknowledged, or unread by a peer whose buffers are full,
// before the kernel gives a connection up. Its own patience is a quarter of an hour, for which a
// peer that a broken network has cut off would keep its slots.
const peerTimeout = 30 * time.Second

// Listen listens on a TCP address. On Linux, connections whose peer has vanished,
// or reads nothing, end after half a minute.
func Listen(address string) (net.Listener, error) {
	l := net.ListenConfig{Control: control}
	return l.Listen(context.Background(), "tcp", address)
}

// Dialer makes connections within timeout; as with Listen, the kernel gives up
// one whose peer is silent.
func Dialer(timeout time.Duration) net.Dialer { return net.Dialer{Timeout: timeout, Control: control} }

// control sets what a socket needs before it listens or connects; accepted
// connections inherit it.
func control(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) { failed = setPeerTimeout(fd, peerTimeout) })
	if err != nil {
		return err
	}
	return failed
}
