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
type wire struct {
	*net.TCPConn
	raw           syscall.RawConn
	reads, writes deadline

	// What the functions that try are to do and what came of it. They are made once per connection, not per call.
	tryRead, tryWrite func(fd uintptr) bool
	into, from        []byte
	page              *page // that was read into, for want of into
	n                 int
	readErr, writeErr error
	parts             net.Buffers
	threeParts        [3][]byte
}

func (w *wire) open(c *net.TCPConn) (err error) {
	w.TCPConn = c
	w.raw, err = c.SyscallConn()
	w.reads.arm, w.writes.arm = c.SetReadDeadline, c.SetWriteDeadline
	w.tryRead, w.tryWrite = w.readOnce, w.writeOn
	return err
}

// read reads once, at least a byte.
func (w *wire) read(p []byte) (int, error) {
	w.into = p
	w.reads.begin()
	err := w.raw.Read(w.tryRead)
	w.reads.end()
	w.into = nil
	if err == nil {
		err = w.readErr
	}
	if err != nil {
		return 0, err
	}
	return w.n, nil
}

// readPage is read with a page to read into, which the caller gives back.
func (w *wire) readPage() (*page, int, error) {
	n, err := w.read(nil)
	p := w.page
	w.page = nil
	return p, n, err
}

func (w *wire) readOnce(fd uintptr) (done bool) {
	p := w.into
	var own *page
	if p == nil {
		own = pages.Get().(*page)
		p = own[:]
	}
	w.n, w.readErr = readFD(fd, p)
	if w.n > 0 {
		w.page = own
		return true
	}
	if own != nil {
		pages.Put(own)
	}
	if w.readErr == syscall.EAGAIN {
		w.reads.wait()
		return false
	}
	if w.readErr == nil {
		w.readErr = io.EOF
	}
	return true
}

// write writes all of p.
func (w *wire) write(p []byte) error {
	w.from = p
	w.writes.begin()
	err := w.raw.Write(w.tryWrite)
	w.writes.end()
	w.from = nil
	if err == nil {
		err = w.writeErr
	}
	return err
}

func (w *wire) writeOn(fd uintptr) (done bool) {
	for {
		var n int
		n, w.writeErr = writeFD(fd, w.from)
		if w.writeErr == syscall.EAGAIN {
			w.writes.wait()
			return false
		}
		if w.from = w.from[max(n, 0):]; w.writeErr != nil || len(w.from) == 0 {
			return true
		}
	}
}

// writeParts writes all that lies in three places in one system call, if the kernel has room for it.
func (w *wire) writeParts(a, b, c []byte) error {
	w.parts = append(w.threeParts[:0], a, b, c)
	w.writes.begin()
	w.writes.wait()
	_, err := w.parts.WriteTo(w.TCPConn)
	w.writes.end()
	w.parts, w.threeParts = nil, [3][]byte{}
	return err
}

// A deadline bounds one direction of a wire, as that of a net.Conn does, but is noticed only by what must wait. So it is
// armed only then: it may be moved and taken back many times per request, and most requests never wait, while
// each change of an armed one is a change of a timer.
type deadline struct {
	arm func(time.Time) error

	mu          sync.Mutex
	want, armed time.Time
	waiting     bool
}

// set may be called by any goroutine, and ends what waits if t has passed.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.want = t; d.waiting {
		d.apply()
	}
}

// begin comes before a read or write: what is armed and holds no more would end it at once.
func (d *deadline) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.armed.IsZero() {
		d.apply()
	}
}

// wait comes when it turns out that it has to wait.
func (d *deadline) wait() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = true
	d.apply()
}

func (d *deadline) end() {
	d.mu.Lock()
	d.waiting = false
	d.mu.Unlock()
}

// apply arms what is wanted. The caller holds mu. It fails only on a connection that is closed.
func (d *deadline) apply() {
	if d.armed != d.want && d.arm(d.want) == nil {
		d.armed = d.want
	}
}
