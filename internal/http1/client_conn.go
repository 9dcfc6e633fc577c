package http1

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"berth/internal/tcp"
)

const (
	// roomy is what an empty socket takes without waiting for the replica.
	singleWriteMax = 16 << 10
	// patience is how long a write may hang before it is looked whether the
	// replica reads no more because it has answered already.
	uploadPoll = 100 * time.Millisecond
	// lingerTimeout bounds how long an aborted request waits for the replica to close its side.
	clientLingerTimeout = 250 * time.Millisecond
)

// A conn is a connection to a replica. One exchange at a time owns it, or the pool. Close and
// hangUp may be called by anyone, any number of times, and end what is being done on it.
type clientConn struct {
	net.Conn
	reused    bool      // it has served before
	idleSince time.Time // when it fell idle

	sendTimeout time.Duration // how long the replica may read nothing of a request; 0: no bound
	upload      struct {      // a long request whose response has not begun
		mu             sync.Mutex
		active, raised bool // slow: it takes longer than patience, so the kernel waits for sendTimeout
		timer          *time.Timer
	}

	// The functions are made once per connection, not once per request.
	onCancel  func()          // hangUp
	raw       syscall.RawConn // nil if there is no socket to look at
	peek      func(fd uintptr)
	peekEmpty bool // what peek saw
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

// hangUp closes the sending half, which the replica takes for a disconnect, and wakes a blocked Read.
func (c *clientConn) halfClose() {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		c.Close()
		return
	}
	_ = c.SetReadDeadline(time.Unix(1, 0))
}

// linger hangs up and closes the connection when the replica has closed its side, or after
// lingerTimeout. It discards what the replica still sends. A connection that is broken is closed
// at once.
func (c *clientConn) lingeringClose() {
	defer c.Close()
	c.halfClose()
	p := pages.Get().(*page)
	defer pages.Put(p)
	for until := time.Now().Add(clientLingerTimeout); time.Now().Before(until); {
		_ = c.SetReadDeadline(until) // each time, because a hangUp at the same moment resets it
		if _, err := c.Read(p[:]); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

// silent tells whether the connection is open and nothing has come that was
// not read. It neither waits nor takes anything.
func (c *clientConn) noPendingData() bool {
	if c.raw == nil {
		return true
	}
	return c.raw.Control(c.peek) == nil && c.peekEmpty
}

// send writes all of p and of what is behind it, unless the replica answers or hangs up while it does
// not read: early then. The error is tcp.ErrSendTimeout if the replica reads nothing for
// sendTimeout.
func (c *clientConn) writeRequest(p, behind []byte) (early bool, err error) {
	if len(behind) == 0 && len(p) <= singleWriteMax {
		_, err := c.Write(p)
		return false, err
	}
	return c.writeUpload(net.Buffers{p, behind})
}

// sendLong looks for itself, as nobody else watches the connection meanwhile.
func (c *clientConn) writeUpload(p net.Buffers) (early bool, err error) {
	c.startUpload()
	defer c.SetWriteDeadline(time.Time{})
	for progress := time.Now(); ; {
		now := time.Now()
		if err := c.SetWriteDeadline(now.Add(uploadPoll)); err != nil {
			return false, err
		}
		n, err := p.WriteTo(c.Conn) // what is written is out of p then
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

// beginUpload has the kernel wait for a replica that reads nothing for as long as sendTimeout says.
// What was sent may still wait for the replica when all of it has been written, so this holds until
// the response begins: endUpload. It begins after patience, since most uploads are over by then and
// cost no system call.
func (c *clientConn) startUpload() {
	if c.raw == nil || c.sendTimeout == 0 {
		return
	}
	u := &c.upload
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.active:
	case u.timer == nil:
		u.timer = time.AfterFunc(uploadPoll, c.raiseUserTimeout)
	default:
		u.timer.Reset(uploadPoll)
	}
	u.active = true
}

func (c *clientConn) raiseUserTimeout() {
	u := &c.upload
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.active {
		u.raised = tcp.SetSendTimeout(c.raw, c.sendTimeout) == nil // fails on a closed connection only
	}
}

func (c *clientConn) finishUpload() {
	u := &c.upload
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.active {
		return
	}
	u.active = false
	u.timer.Stop()
	if u.raised {
		u.raised = tcp.SetSendTimeout(c.raw, 0) != nil
	}
}
