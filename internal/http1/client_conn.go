package http1

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"berth/internal/tcp"
)

// clientLingerTimeout bounds the wait of an aborted request for the server to close the connection.
const clientLingerTimeout = 250 * time.Millisecond

// A clientConn is a connection to a server, owned by one round trip at a time, or by the pool. Only
// the owner may use the connection, with two exceptions: Close and halfClose may be called by any
// goroutine, any number of times, and end a read or write in progress.
type clientConn struct {
	net.Conn
	reused    bool      // taken from the pool, not new
	idleSince time.Time // end of the last response; valid in the pool

	sendTimeout time.Duration // for the server to read more of a request; 0 means no timeout
	upload      uploadState

	// The functions are created once per connection, not once per request.
	onCancel  func()          // halfClose
	raw       syscall.RawConn // nil without a socket to inspect
	peek      func(fd uintptr)
	peekEmpty bool // result of peek: a read would block
}

// newClientConn returns the connection for nc. The caller owns the connection.
func newClientConn(nc net.Conn) *clientConn {
	c := &clientConn{Conn: nc}
	c.onCancel = c.halfClose
	if s, ok := nc.(syscall.Conn); ok {
		c.raw, _ = s.SyscallConn()
		c.peek = func(fd uintptr) { c.peekEmpty = recvWouldBlock(fd) }
	}
	return c
}

// halfClose closes the sending half, which is a disconnect to the server, and ends a blocked Read.
// A connection that cannot be half-closed is closed. Any goroutine may call halfClose, also without
// owning the connection; it does not block.
func (c *clientConn) halfClose() {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		c.Close()
		return
	}
	_ = c.SetReadDeadline(time.Unix(1, 0))
}

// lingeringClose half-closes the connection, discards all data still sent by the server, and closes
// the connection when the server has closed the other half, or after clientLingerTimeout.
// lingeringClose blocks until then, but not on a broken connection. A Read by another goroutine may
// be in progress and ends.
func (c *clientConn) lingeringClose() {
	defer c.Close()
	c.halfClose()
	p := pages.Get().(*page)
	defer pages.Put(p)
	for until := time.Now().Add(clientLingerTimeout); time.Now().Before(until); {
		_ = c.SetReadDeadline(until) // each time: a concurrent halfClose may reset the deadline
		if _, err := c.Read(p[:]); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

// noPendingData reports whether the connection is open and has no unread data. Without a socket to
// inspect, it returns true. It neither blocks nor reads. Only the owner may call it, because
// peekEmpty is not synchronized.
func (c *clientConn) noPendingData() bool {
	if c.raw == nil {
		return true
	}
	return c.raw.Control(c.peek) == nil && c.peekEmpty
}

// writeRequest writes all of p and then of rest. early is true if the server responds or closes the
// connection instead of reading; the rest is not written then. The error is tcp.ErrSendTimeout if
// the server reads nothing for sendTimeout. writeRequest blocks until one of these; only the owner
// may call it.
func (c *clientConn) writeRequest(p, rest []byte) (early bool, err error) {
	if len(rest) == 0 && len(p) <= singleWriteMax {
		_, err := c.Write(p)
		return false, err
	}
	return c.writeUpload(net.Buffers{p, rest})
}

// writeUpload is writeRequest for data possibly larger than the socket buffer. A blocked write is
// interrupted every uploadPoll to check for a response, because no goroutine reads meanwhile.
func (c *clientConn) writeUpload(p net.Buffers) (early bool, err error) {
	c.startUpload()
	defer c.SetWriteDeadline(time.Time{})
	for progress := time.Now(); ; {
		now := time.Now()
		if err := c.SetWriteDeadline(now.Add(uploadPoll)); err != nil {
			return false, err
		}
		n, err := p.WriteTo(c.Conn) // removes the written part from p
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
