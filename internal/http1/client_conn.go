package http1

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"berth/internal/tcp"
)

// clientLingerTimeout bounds how long an aborted request waits for the server to close its side.
const clientLingerTimeout = 250 * time.Millisecond

// A clientConn is a connection to a server. One round trip at a time owns it, or the pool. Close and
// halfClose may be called by any goroutine, any number of times, and end a read or write in progress.
type clientConn struct {
	net.Conn
	reused    bool      // it has carried a request before
	idleSince time.Time // when its last response ended; valid while it is in the pool

	sendTimeout time.Duration // while the server reads nothing of a request; 0 means no timeout
	upload      uploadState

	// The functions are made once per connection, not once per request.
	onCancel  func()          // halfClose
	raw       syscall.RawConn // nil if there is no socket to inspect
	peek      func(fd uintptr)
	peekEmpty bool // result of peek: a read would block
}

func newClientConn(nc net.Conn) *clientConn {
	c := &clientConn{Conn: nc}
	c.onCancel = c.halfClose
	if s, ok := nc.(syscall.Conn); ok {
		c.raw, _ = s.SyscallConn()
		c.peek = func(fd uintptr) { c.peekEmpty = recvWouldBlock(fd) }
	}
	return c
}

// halfClose closes the sending half, which the server takes for a disconnect, and wakes a blocked
// Read.
func (c *clientConn) halfClose() {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		c.Close()
		return
	}
	_ = c.SetReadDeadline(time.Unix(1, 0))
}

// lingeringClose half-closes the connection and closes it when the server has closed its side, or
// after clientLingerTimeout. It discards what the server still sends. A broken connection is closed
// at once.
func (c *clientConn) lingeringClose() {
	defer c.Close()
	c.halfClose()
	p := pages.Get().(*page)
	defer pages.Put(p)
	for until := time.Now().Add(clientLingerTimeout); time.Now().Before(until); {
		_ = c.SetReadDeadline(until) // each time, because a concurrent halfClose resets it
		if _, err := c.Read(p[:]); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

// noPendingData reports whether the connection is open and nothing has arrived that was not read. It
// neither blocks nor reads.
func (c *clientConn) noPendingData() bool {
	if c.raw == nil {
		return true
	}
	return c.raw.Control(c.peek) == nil && c.peekEmpty
}

// writeRequest writes all of p and then of rest, unless the server responds or closes the connection
// while it does not read: early is true then. The error is tcp.ErrSendTimeout if the server reads
// nothing for sendTimeout.
func (c *clientConn) writeRequest(p, rest []byte) (early bool, err error) {
	if len(rest) == 0 && len(p) <= singleWriteMax {
		_, err := c.Write(p)
		return false, err
	}
	return c.writeUpload(net.Buffers{p, rest})
}

// writeUpload is writeRequest for what may fill the socket's buffer. While a write hangs it checks
// every uploadPoll whether the server has responded, because no goroutine reads meanwhile.
func (c *clientConn) writeUpload(p net.Buffers) (early bool, err error) {
	c.startUpload()
	defer c.SetWriteDeadline(time.Time{})
	for progress := time.Now(); ; {
		now := time.Now()
		if err := c.SetWriteDeadline(now.Add(uploadPoll)); err != nil {
			return false, err
		}
		n, err := p.WriteTo(c.Conn) // removes from p what was written
		switch {
		case errors.Is(err, syscall.ETIMEDOUT):
			return false, tcp.ErrSendTimeout
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return false, err
		case !c.noPendingData():
			return true, nil
		case n > 0:
			progress = now
		case c.sendTimeout > 0 && time.Since(progress) >= c.sendTimeout:
			return false, tcp.ErrSendTimeout
		}
	}
}
