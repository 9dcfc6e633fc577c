package tcp

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// MaxRaw is the longest read or write, in bytes, made without notifying the Go scheduler. Copying
// more takes long enough for the scheduler to need to know.
const MaxRaw = 64 << 10

// A Conn is a TCP connection with reads and writes by Read and Write of this package, up to MaxRaw
// bytes; longer ones are those of package net. Deadlines, errors and concurrent use are as in
// package net.
type Conn struct {
	*net.TCPConn
	raw           syscall.RawConn
	reads, writes direction
}

// A direction is the reading or the writing half of a connection, with the state of the current
// call.
type direction struct {
	// onReady is readOnce or writeAll, called by the poller. It is bound once per connection: a new
	// method value per call would be an allocation.
	onReady func(fd uintptr) (done bool)

	mu    sync.Mutex // held for a whole call, also while it waits, as in package net; guards all below
	p     []byte     // the caller's buffer; of a write the unwritten rest
	n     int        // bytes read or written
	errno syscall.Errno
}

// Wrap returns c as a *Conn, or c itself if c is not a TCP connection.
func Wrap(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c
	}
	conn := &Conn{TCPConn: tcp, raw: raw}
	conn.reads.onReady, conn.writes.onReady = conn.reads.readOnce, conn.writes.writeAll
	return conn
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 || len(p) > MaxRaw {
		return c.TCPConn.Read(p)
	}
	c.reads.beginCall(p)
	err := c.raw.Read(c.reads.onReady) // idle streams wait here: few frames keep their stacks small
	n, err := c.reads.endCall("read", c, err)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	if len(p) == 0 || len(p) > MaxRaw {
		return c.TCPConn.Write(p)
	}
	c.writes.beginCall(p)
	err := c.raw.Write(c.writes.onReady)
	return c.writes.endCall("write", c, err)
}

// beginCall locks the direction until endCall.
func (d *direction) beginCall(p []byte) {
	d.mu.Lock()
	d.p, d.n, d.errno = p, 0, 0
}

// endCall unlocks the direction and returns the result of the call. pollErr is the error of the
// poller: a closed connection or a passed deadline. Errors have the form of package net.
func (d *direction) endCall(op string, c *Conn, pollErr error) (int, error) {
	n, errno := d.n, d.errno
	d.p = nil
	d.mu.Unlock()
	if opErr, ok := pollErr.(*net.OpError); ok {
		opErr.Op = op // net/http inspects Op; the poller sets "raw-read" or "raw-write"
	}
	if pollErr == nil && errno != 0 {
		pollErr = &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(op, errno)}
	}
	return n, pollErr
}

// readOnce reads once and reports whether the call is complete; the poller waits for data if not.
func (d *direction) readOnce(fd uintptr) (done bool) {
	d.n, d.errno = Read(fd, d.p)
	return d.errno != syscall.EAGAIN
}

// writeAll writes the rest of p and reports whether the call is complete. It reports false if the
// send buffer is full; the poller then waits for room.
func (d *direction) writeAll(fd uintptr) (done bool) {
	for len(d.p) > 0 {
		var n int
		if n, d.errno = Write(fd, d.p); d.errno != 0 {
			return d.errno != syscall.EAGAIN
		}
		d.n, d.p = d.n+n, d.p[n:]
	}
	return true
}
