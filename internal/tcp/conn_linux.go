package tcp

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// short is what one call of ours moves at most. Longer ones are left to package net: to copy that much takes time enough for
// the scheduler to hear of it.
const MaxRaw = 64 << 10

// Conn is a TCP connection that is read and written by calls of ours.
type Conn struct {
	*net.TCPConn
	raw           syscall.RawConn
	reads, writes transfer
}

// A transfer is one direction of a connection, and the call of Read or Write that is under way there.
type transfer struct {
	try func(fd uintptr) (done bool) // made once per connection, not once per call

	mu   sync.Mutex // held while a call waits, as package net does; guards all below
	p    []byte     // what is left of the caller's
	n    int
	fail syscall.Errno
}

// Wrap returns c as one of ours, or c itself if it is no TCP connection.
func Wrap(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c
	}
	s := &Conn{TCPConn: tcp, raw: raw}
	s.reads.try, s.writes.try = s.reads.read, s.writes.write
	return s
}

func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 || len(p) > MaxRaw {
		return c.TCPConn.Read(p)
	}
	c.reads.begin(p)
	n, err := c.reads.end("read", c, c.raw.Read(c.reads.try)) // the wait, with few frames around it: streams wait here
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

func (c *Conn) Write(p []byte) (int, error) {
	if len(p) == 0 || len(p) > MaxRaw {
		return c.TCPConn.Write(p)
	}
	c.writes.begin(p)
	return c.writes.end("write", c, c.raw.Write(c.writes.try))
}

// begin takes the direction for a call, until end.
func (t *transfer) begin(p []byte) {
	t.mu.Lock()
	t.p, t.n, t.fail = p, 0, 0
}

// end tells what the call came to. err is what the poller says; errors get the form that they have in package net.
func (t *transfer) end(op string, c *Conn, err error) (int, error) {
	n, fail := t.n, t.fail
	t.p = nil
	t.mu.Unlock()
	if failed, ok := err.(*net.OpError); ok {
		failed.Op = op // which net/http goes by
	}
	if err == nil && fail != 0 {
		err = &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(op, fail)}
	}
	return n, err
}

func (t *transfer) read(fd uintptr) (done bool) {
	t.n, t.fail = Read(fd, t.p)
	return t.fail != syscall.EAGAIN
}

func (t *transfer) write(fd uintptr) (done bool) {
	for len(t.p) > 0 {
		var n int
		if n, t.fail = Write(fd, t.p); t.fail != 0 {
			return t.fail != syscall.EAGAIN
		}
		t.n, t.p = t.n+n, t.p[n:]
	}
	return true
}
