package tcp

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

// A Watch is kept over one connection, from Start on. The zero value watches nothing.
type Watch struct{ id uint64 }

// Start watches over c, which must be an open TCP connection, and calls gone once its peer has closed or half-closed it,
// or it broke; at once if that has happened already. The end is seen also while bytes that came before it lie unread.
//
// gone is called once at most, by the goroutine that serves all watches: it must not block. It may be running before
// Start returns.
//
// The owner calls Stop before it closes c. What it does to the connection itself is no news and may go untold.
func WatchClose(c syscall.Conn, gone func()) (Watch, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Watch{}, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	w, err := all.add(gone)
	if err != nil {
		return Watch{}, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	failed := raw.Control(func(fd uintptr) { err = all.tell(fd, w.id) })
	if failed != nil {
		err = failed
	}
	if err != nil {
		w.Stop()
		return Watch{}, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return w, nil
}

// Gone reports whether the peer of an open TCP connection has closed or half-closed it, or it broke. It does not wait. The
// end is not seen while bytes that came before it lie unread.
func PeerClosed(c syscall.Conn) (gone bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		gone = err == nil && n == 0 || err != nil && err != syscall.EAGAIN && err != syscall.EINTR
	})
	return gone || err != nil
}

// Stop ends the watch. A call of gone that has begun by then may still be running when it returns. Further calls do
// nothing. The kernel forgets the connection when it is closed; if it lives on, its end is told to nobody.
func (w Watch) Stop() { all.remove(w.id) }

// all are the watches of the process.
var all poller

// A poller has one epoll instance, which it keeps, and one goroutine, which runs while there are watches. The goroutine
// waits for the instance as for any other file, in Go's own poller, so that it holds no thread.
type poller struct {
	mu      sync.Mutex
	file    *os.File // the epoll instance; nil before the first watch
	fd      int
	raw     syscall.RawConn
	last    uint64            // id given
	gone    map[uint64]func() // by id, which unlike an fd is never used again
	running bool              // the goroutine
}

func (p *poller) add(gone func()) (Watch, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.file == nil {
		if err := p.open(); err != nil {
			return Watch{}, err
		}
	}
	p.last++
	p.gone[p.last] = gone
	if len(p.gone) == 1 {
		_ = p.file.SetReadDeadline(time.Time{}) // remove may have set one that the goroutine has not seen yet
	}
	if !p.running {
		p.running = true
		go p.run()
	}
	return Watch{p.last}, nil
}

func (p *poller) open() error {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	if err := syscall.SetNonblock(fd, true); err != nil { // or os.NewFile leaves it out of Go's poller
		syscall.Close(fd)
		return err
	}
	file := os.NewFile(uintptr(fd), "epoll")
	if err := file.SetReadDeadline(time.Time{}); err != nil { // it is not in there
		file.Close()
		return err
	}
	p.raw, err = file.SyscallConn()
	if err != nil {
		file.Close()
		return err
	}
	p.file, p.fd, p.gone = file, fd, make(map[uint64]func())
	return nil
}

// tell has the kernel watch a socket under an id. Data that comes is not asked for, so it wakes nobody.
func (p *poller) tell(fd uintptr, id uint64) error {
	e := syscall.EpollEvent{Events: syscall.EPOLLRDHUP | edgeTriggered, Fd: int32(id), Pad: int32(id >> 32)}
	return syscall.EpollCtl(p.fd, syscall.EPOLL_CTL_ADD, int(fd), &e)
}

// edgeTriggered is syscall.EPOLLET as the unsigned number that it is.
const edgeTriggered = 1 << 31

func (p *poller) remove(id uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, watched := p.gone[id]; !watched {
		return
	}
	delete(p.gone, id)
	if len(p.gone) == 0 {
		_ = p.file.SetReadDeadline(time.Unix(1, 0)) // wakes the goroutine, to end
	}
}

// take returns what is to be called for id, for the last time; nil if it is watched no more.
func (p *poller) take(id uint64) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	gone := p.gone[id]
	delete(p.gone, id)
	return gone
}

// run tells of every end until nothing is watched.
func (p *poller) run() {
	var events [64]syscall.EpollEvent
	var n int
	next := func(fd uintptr) bool {
		n, _ = syscall.EpollWait(int(fd), events[:], 0) // after an error n is -1
		return n > 0
	}
	for !p.over() {
		if p.raw.Read(next) != nil {
			continue // it was woken to see whether it is over
		}
		for _, e := range events[:n] {
			if gone := p.take(uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32); gone != nil {
				gone()
			}
		}
	}
}

// over ends the goroutine if nothing is watched.
func (p *poller) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = len(p.gone) > 0
	return !p.running
}
