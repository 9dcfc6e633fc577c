package http1

import (
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// A rawConn is a TCP connection read and written by the descriptor, for two reasons. Waiting for a
// request holds no buffer: a page is taken when bytes have arrived. And a deadline costs nothing
// until a read or write has to wait, see ioDeadline.
//
// One goroutine at a time may read and one may write, both at the same time. Any goroutine may set
// deadlines and close the connection.
type rawConn struct {
	*net.TCPConn
	raw                         syscall.RawConn
	readDeadline, writeDeadline ioDeadline

	// Arguments and results of the functions for raw. These are created once per connection.
	readFunc, writeFunc func(fd uintptr) bool
	readBuf, writeBuf   []byte
	readPageBuf         *page // filled if readBuf is nil
	readN               int
	readErr, writeErr   error
	vector              net.Buffers
	vectorBuf           [3][]byte
}

func (c *rawConn) initConn(tcp *net.TCPConn) (err error) {
	c.TCPConn = tcp
	c.raw, err = tcp.SyscallConn()
	c.readDeadline.setDeadline, c.writeDeadline.setDeadline = tcp.SetReadDeadline, tcp.SetWriteDeadline
	c.readFunc, c.writeFunc = c.tryRead, c.tryWrite
	return err
}

// readRaw reads once, and blocks until there is at least one byte. The error at the end of the
// connection is io.EOF.
func (c *rawConn) readRaw(p []byte) (int, error) {
	c.readBuf = p
	c.readDeadline.beforeIO()
	err := c.raw.Read(c.readFunc)
	c.readDeadline.afterIO()
	c.readBuf = nil
	if err == nil {
		err = c.readErr
	}
	if err != nil {
		return 0, err
	}
	return c.readN, nil
}

// readPage is readRaw into a page taken when bytes have arrived. The page belongs to the caller, to
// be returned to the pool.
func (c *rawConn) readPage() (*page, int, error) {
	n, err := c.readRaw(nil)
	p := c.readPageBuf
	c.readPageBuf = nil
	return p, n, err
}

// tryRead reads once. It returns false if the read would block; raw then waits and calls tryRead
// again, in the same goroutine.
func (c *rawConn) tryRead(fd uintptr) (done bool) {
	p := c.readBuf
	var own *page
	if p == nil {
		own = pages.Get().(*page)
		p = own[:]
	}
	c.readN, c.readErr = readFD(fd, p)
	if c.readN > 0 {
		c.readPageBuf = own
		return true
	}
	if own != nil {
		pages.Put(own)
	}
	if c.readErr == syscall.EAGAIN {
		c.readDeadline.beforeWait()
		return false
	}
	if c.readErr == nil {
		c.readErr = io.EOF
	}
	return true
}

// writeRaw writes all of p, and blocks until then, up to the write deadline.
func (c *rawConn) writeRaw(p []byte) error {
	c.writeBuf = p
	c.writeDeadline.beforeIO()
	err := c.raw.Write(c.writeFunc)
	c.writeDeadline.afterIO()
	c.writeBuf = nil
	if err == nil {
		err = c.writeErr
	}
	return err
}

// tryWrite writes the rest of writeBuf. It returns false if a write would block; raw then waits and
// calls tryWrite again.
func (c *rawConn) tryWrite(fd uintptr) (done bool) {
	for {
		var n int
		n, c.writeErr = writeFD(fd, c.writeBuf)
		if c.writeErr == syscall.EAGAIN {
			c.writeDeadline.beforeWait()
			return false
		}
		if c.writeBuf = c.writeBuf[max(n, 0):]; c.writeErr != nil || len(c.writeBuf) == 0 {
			return true
		}
	}
}

// writeVector writes three buffers, in one system call if the kernel has room for them, and blocks
// like writeRaw.
func (c *rawConn) writeVector(first, second, third []byte) error {
	c.vector = append(c.vectorBuf[:0], first, second, third)
	c.writeDeadline.beforeIO()
	c.writeDeadline.beforeWait()
	_, err := c.vector.WriteTo(c.TCPConn)
	c.writeDeadline.afterIO()
	c.vector, c.vectorBuf = nil, [3][]byte{}
	return err
}

// An ioDeadline is the deadline of one direction of a rawConn. Unlike the deadline of a net.Conn,
// it ends a read or write only if the call has to wait, so it is armed only then. A request may
// move and remove the deadline many times, most requests never wait, and each change of an armed
// deadline costs a change of a runtime timer.
type ioDeadline struct {
	setDeadline func(time.Time) error // of the TCP connection

	mu          sync.Mutex
	want, armed time.Time
	waiting     bool
}

// setTime sets the deadline; the zero time removes the deadline. A waiting read or write ends once
// t has passed. Any goroutine may call setTime, any number of times; it does not block.
func (d *ioDeadline) setTime(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.want = t; d.waiting {
		d.applyLocked()
	}
}

// beforeIO is called before a read or write. It replaces an outdated armed deadline, which would
// end the call at once.
func (d *ioDeadline) beforeIO() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.armed.IsZero() {
		d.applyLocked()
	}
}

// beforeWait is called when the read or write has to wait, and arms the deadline.
func (d *ioDeadline) beforeWait() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = true
	d.applyLocked()
}

// afterIO is called after a read or write. An armed deadline stays armed, see beforeIO.
func (d *ioDeadline) afterIO() {
	d.mu.Lock()
	d.waiting = false
	d.mu.Unlock()
}

// applyLocked arms the wanted deadline; arming fails only on a closed connection. The caller holds
// mu.
func (d *ioDeadline) applyLocked() {
	if d.armed != d.want && d.setDeadline(d.want) == nil {
		d.armed = d.want
	}
}
