package http1

import (
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// A page is what a head is read into, and where an answer is put together.
type page [4 << 10]byte

var pages = sync.Pool{New: func() any { return new(page) }}

// A wire is a TCP connection that is read and written by its descriptor, for two reasons. Who waits for a request holds
// no buffer: a page is taken when something has come. And a deadline costs nothing until something must wait: see deadline.
//
// One goroutine at a time reads, one writes. Deadlines may be set and the connection closed by any.
type rawConn struct {
	*net.TCPConn
	raw                         syscall.RawConn
	readDeadline, writeDeadline deadline

	// What the functions that try are to do and what came of it. They are made once per connection, not per call.
	readFunc, writeFunc func(fd uintptr) bool
	readBuf, writeBuf   []byte
	readPageBuf         *page // that was read into, for want of into
	readN               int
	readErr, writeErr   error
	vector              net.Buffers
	vectorBuf           [3][]byte
}

func (w *rawConn) init(c *net.TCPConn) (err error) {
	w.TCPConn = c
	w.raw, err = c.SyscallConn()
	w.readDeadline.setDeadline, w.writeDeadline.setDeadline = c.SetReadDeadline, c.SetWriteDeadline
	w.readFunc, w.writeFunc = w.tryRead, w.tryWrite
	return err
}

// read reads once, at least a byte.
func (w *rawConn) readRaw(p []byte) (int, error) {
	w.readBuf = p
	w.readDeadline.beforeIO()
	err := w.raw.Read(w.readFunc)
	w.readDeadline.afterIO()
	w.readBuf = nil
	if err == nil {
		err = w.readErr
	}
	if err != nil {
		return 0, err
	}
	return w.readN, nil
}

// readPage is read with a page to read into, which the caller gives back.
func (w *rawConn) readPage() (*page, int, error) {
	n, err := w.readRaw(nil)
	p := w.readPageBuf
	w.readPageBuf = nil
	return p, n, err
}

func (w *rawConn) tryRead(fd uintptr) (done bool) {
	p := w.readBuf
	var own *page
	if p == nil {
		own = pages.Get().(*page)
		p = own[:]
	}
	w.readN, w.readErr = readFD(fd, p)
	if w.readN > 0 {
		w.readPageBuf = own
		return true
	}
	if own != nil {
		pages.Put(own)
	}
	if w.readErr == syscall.EAGAIN {
		w.readDeadline.beforeWait()
		return false
	}
	if w.readErr == nil {
		w.readErr = io.EOF
	}
	return true
}

// write writes all of p.
func (w *rawConn) writeRaw(p []byte) error {
	w.writeBuf = p
	w.writeDeadline.beforeIO()
	err := w.raw.Write(w.writeFunc)
	w.writeDeadline.afterIO()
	w.writeBuf = nil
	if err == nil {
		err = w.writeErr
	}
	return err
}

func (w *rawConn) tryWrite(fd uintptr) (done bool) {
	for {
		var n int
		n, w.writeErr = writeFD(fd, w.writeBuf)
		if w.writeErr == syscall.EAGAIN {
			w.writeDeadline.beforeWait()
			return false
		}
		if w.writeBuf = w.writeBuf[max(n, 0):]; w.writeErr != nil || len(w.writeBuf) == 0 {
			return true
		}
	}
}

// writeParts writes all that lies in three places in one system call, if the kernel has room for it.
func (w *rawConn) writeVector(a, b, c []byte) error {
	w.vector = append(w.vectorBuf[:0], a, b, c)
	w.writeDeadline.beforeIO()
	w.writeDeadline.beforeWait()
	_, err := w.vector.WriteTo(w.TCPConn)
	w.writeDeadline.afterIO()
	w.vector, w.vectorBuf = nil, [3][]byte{}
	return err
}

// A deadline bounds one direction of a wire, as that of a net.Conn does, but is noticed only by what must wait. So it is
// armed only then: it may be moved and taken back many times per request, and most requests never wait, while
// each change of an armed one is a change of a timer.
type deadline struct {
	setDeadline func(time.Time) error

	mu          sync.Mutex
	want, armed time.Time
	waiting     bool
}

// set may be called by any goroutine, and ends what waits if t has passed.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.want = t; d.waiting {
		d.applyLocked()
	}
}

// begin comes before a read or write: what is armed and holds no more would end it at once.
func (d *deadline) beforeIO() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.armed.IsZero() {
		d.applyLocked()
	}
}

// wait comes when it turns out that it has to wait.
func (d *deadline) beforeWait() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = true
	d.applyLocked()
}

func (d *deadline) afterIO() {
	d.mu.Lock()
	d.waiting = false
	d.mu.Unlock()
}

// apply arms what is wanted. The caller holds mu. It fails only on a connection that is closed.
func (d *deadline) applyLocked() {
	if d.armed != d.want && d.setDeadline(d.want) == nil {
		d.armed = d.want
	}
}
