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
	roomy = 16 << 10
	// patience is how long a write may hang before it is looked whether the
	// replica reads no more because it has answered already.
	patience = 100 * time.Millisecond
	// lingerTimeout bounds how long an aborted request waits for the replica to close its side.
	lingerTimeout = 250 * time.Millisecond
)

// A conn is a connection to a replica. One exchange at a time owns it, or the pool. Close and
// hangUp may be called by anyone, any number of times, and end what is being done on it.
type conn struct {
	net.Conn
	reused bool      // it has served before
	since  time.Time // when it fell idle

	sendTimeout time.Duration // how long the replica may read nothing of a request; 0: no bound
	upload      struct {      // a long request whose response has not begun
		mu          sync.Mutex
		begun, slow bool // slow: it takes longer than patience, so the kernel waits for sendTimeout
		timer       *time.Timer
	}

	// The functions are made once per connection, not once per request.
	abort func()          // hangUp
	raw   syscall.RawConn // nil if there is no socket to look at
	peek  func(fd uintptr)
	quiet bool // what peek saw
}

func newConn(nc net.Conn) *conn {
	c := &conn{Conn: nc}
	c.abort = c.hangUp
	if s, ok := nc.(syscall.Conn); ok {
		c.raw, _ = s.SyscallConn()
		c.peek = func(fd uintptr) { c.quiet = quiet(fd) }
	}
	return c
}

// hangUp closes the sending half, which the replica takes for a disconnect, and wakes a blocked Read.
func (c *conn) hangUp() {
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
func (c *conn) linger() {
	defer c.Close()
	c.hangUp()
	p := pages.Get().(*page)
	defer pages.Put(p)
	for until := time.Now().Add(lingerTimeout); time.Now().Before(until); {
		_ = c.SetReadDeadline(until) // each time, because a hangUp at the same moment resets it
		if _, err := c.Read(p[:]); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

// silent tells whether the connection is open and nothing has come that was
// not read. It neither waits nor takes anything.
func (c *conn) silent() bool {
	if c.raw == nil {
		return true
	}
	return c.raw.Control(c.peek) == nil && c.quiet
}

// send writes all of p and of what is behind it, unless the replica answers or hangs up while it does
// not read: early then. The error is tcp.ErrSendTimeout if the replica reads nothing for
// sendTimeout.
func (c *conn) send(p, behind []byte) (early bool, err error) {
	if len(behind) == 0 && len(p) <= roomy {
		_, err := c.Write(p)
		return false, err
	}
	return c.sendLong(net.Buffers{p, behind})
}

// sendLong looks for itself, as nobody else watches the connection meanwhile.
func (c *conn) sendLong(p net.Buffers) (early bool, err error) {
	c.beginUpload()
	defer c.SetWriteDeadline(time.Time{})
	for progress := time.Now(); ; {
		now := time.Now()
		if err := c.SetWriteDeadline(now.Add(patience)); err != nil {
			return false, err
		}
		n, err := p.WriteTo(c.Conn) // what is written is out of p then
		switch {
		case errors.Is(err, syscall.ETIMEDOUT):
			return false, tcp.ErrSendTimeout
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return false, err
		case !c.silent():
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
func (c *conn) beginUpload() {
	if c.raw == nil || c.sendTimeout == 0 {
		return
	}
	u := &c.upload
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.begun:
	case u.timer == nil:
		u.timer = time.AfterFunc(patience, c.slowUpload)
	default:
		u.timer.Reset(patience)
	}
	u.begun = true
}

func (c *conn) slowUpload() {
	u := &c.upload
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.begun {
		u.slow = tcp.SetSendTimeout(c.raw, c.sendTimeout) == nil // fails on a closed connection only
	}
}

func (c *conn) endUpload() {
	u := &c.upload
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.begun {
		return
	}
	u.begun = false
	u.timer.Stop()
	if u.slow {
		u.slow = tcp.SetSendTimeout(c.raw, 0) != nil
	}
}
