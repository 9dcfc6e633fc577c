package tcp

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

// A Watch is the registration of one connection with WatchClose. The zero value watches nothing.
type Watch struct{ id uint64 }

// WatchClose calls onClose once the peer of c has closed or half-closed the connection or the
// connection has failed; at once if that has happened already. Unread bytes before the close do not
// delay the call. c must be an open TCP connection without an earlier watch.
//
// onClose is called at most once, by the goroutine that serves all watches, and must not block. The
// call may begin before WatchClose returns.
//
// The owner must call Stop before closing c. A close by the owner may not be reported.
func WatchClose(c syscall.Conn, onClose func()) (Watch, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Watch{}, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	w, err := watches.add(onClose)
	if err != nil {
		return Watch{}, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	failed := raw.Control(func(fd uintptr) { err = watches.register(fd, w.id) })
	if failed != nil {
		err = failed
	}
	if err != nil {
		w.Stop()
		return Watch{}, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return w, nil
}

// PeerClosed reports whether the peer of an open TCP connection has closed or half-closed the
// connection or the connection has failed. It does not block. A close is not detected while bytes
// before it are unread.
func PeerClosed(c syscall.Conn) (closed bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		closed = err == nil && n == 0 || err != nil && err != syscall.EAGAIN && err != syscall.EINTR
	})
	return closed || err != nil
}

// Stop ends the watch. It does not wait for a call of onClose that has begun. Further calls do
// nothing. The connection stays registered with the kernel until it is closed, but its events are
// ignored.
func (w Watch) Stop() { watches.remove(w.id) }

// watches holds the watches of the process.
var watches watchPoller

// A watchPoller owns one epoll instance, which is never closed, and one goroutine, which runs while
// there are watches. The goroutine waits for the epoll instance in Go's own poller, as for any
// other file, and so occupies no thread.
type watchPoller struct {
	mu        sync.Mutex
	file      *os.File // the epoll instance; nil before the first watch
	epollFD   int
	raw       syscall.RawConn
	lastID    uint64
	callbacks map[uint64]func() // by ID; IDs, unlike descriptors, are never reused
	running   bool              // whether the goroutine exists
}

// add adds a watch, without a connection yet, and starts the goroutine if needed.
func (p *watchPoller) add(onClose func()) (Watch, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.file == nil {
		if err := p.openLocked(); err != nil {
			return Watch{}, err
		}
	}
	p.lastID++
	p.callbacks[p.lastID] = onClose
	if len(p.callbacks) == 1 {
		_ = p.file.SetReadDeadline(time.Time{}) // remove may have set one that the goroutine has not seen yet
	}
	if !p.running {
		p.running = true
		go p.run()
	}
	return Watch{p.lastID}, nil
}

// openLocked creates the epoll instance and adds it to Go's poller.
func (p *watchPoller) openLocked() error {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	if err := syscall.SetNonblock(fd, true); err != nil { // os.NewFile adds only non-blocking files to the poller
		syscall.Close(fd)
		return err
	}
	file := os.NewFile(uintptr(fd), "epoll")
	if err := file.SetReadDeadline(time.Time{}); err != nil { // fails if the file is not in the poller
		file.Close()
		return err
	}
	p.raw, err = file.SyscallConn()
	if err != nil {
		file.Close()
		return err
	}
	p.file, p.epollFD, p.callbacks = file, fd, make(map[uint64]func())
	return nil
}

// register adds a socket to the epoll instance under the ID of a watch. Only closes and errors are
// requested, not data: arriving data wakes nothing.
func (p *watchPoller) register(fd uintptr, id uint64) error {
	e := syscall.EpollEvent{Events: syscall.EPOLLRDHUP | edgeTriggered, Fd: int32(id), Pad: int32(id >> 32)}
	return syscall.EpollCtl(p.epollFD, syscall.EPOLL_CTL_ADD, int(fd), &e)
}

// edgeTriggered is EPOLLET. The constant of package syscall is negative and overflows a uint32.
const edgeTriggered = 1 << 31

// remove removes a watch. The goroutine ends with the last one.
func (p *watchPoller) remove(id uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.callbacks[id]; !ok {
		return
	}
	delete(p.callbacks, id)
	if len(p.callbacks) == 0 {
		_ = p.file.SetReadDeadline(time.Unix(1, 0)) // wakes the goroutine, which then ends
	}
}

// popCallback removes a watch and returns its callback; nil if the watch has been stopped. Unlike
// remove it runs in the goroutine, which needs no wake-up.
func (p *watchPoller) popCallback(id uint64) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	onClose := p.callbacks[id]
	delete(p.callbacks, id)
	return onClose
}

// run waits for events and calls the callbacks until there are no watches.
func (p *watchPoller) run() {
	var events [64]syscall.EpollEvent
	var n int
	poll := func(fd uintptr) (done bool) {
		n, _ = syscall.EpollWait(int(fd), events[:], 0) // after an error n is -1
		return n > 0
	}
	for !p.endIfIdle() {
		if p.raw.Read(poll) != nil {
			continue // remove has set a deadline
		}
		for _, e := range events[:n] {
			if onClose := p.popCallback(uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32); onClose != nil {
				onClose()
			}
		}
	}
}

// endIfIdle reports whether there are no watches, so that run must return. It clears running under
// the same lock: a later add starts a new goroutine.
func (p *watchPoller) endIfIdle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = len(p.callbacks) > 0
	return !p.running
}
