package http1

import (
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"berth/internal/tcp"
)

const (
	// singleWriteMax is how much an empty socket buffer takes without waiting for the server.
	singleWriteMax = 16 << 10
	// uploadPoll is how long a write may hang before the connection is checked for an early
	// response of a server that reads no more.
	uploadPoll = 100 * time.Millisecond
	// uploadChunk is how much of a body is sent between two checks for an early response.
	uploadChunk = 1 << 20
)

// Sender is a request body in memory. SendTo writes what has not been read of it, as io.WriterTo
// does, but may hold a lock that Close waits for. net/http's transport, which calls WriteTo, could
// deadlock on that.
type Sender interface{ SendTo(w io.Writer) error }

// errUploadStopped ends an upload whose remainder the server does not want.
var errUploadStopped = errors.New("the server has responded or closed the connection")

// An uploadWriter is the destination of a Sender. It takes no more than the announced length.
type uploadWriter struct {
	rt        *roundTrip
	pending   []byte // the header and short writes; sent with the next write
	remaining int64
	stopped   bool
}

// Write sends p, or keeps it for the next write if more is to follow and both fit into one write.
func (u *uploadWriter) Write(p []byte) (n int, err error) {
	p = p[:min(int64(len(p)), u.remaining)]
	if len(u.pending)+len(p) <= singleWriteMax && int64(len(p)) < u.remaining {
		u.pending, u.remaining = append(u.pending, p...), u.remaining-int64(len(p))
		return len(p), nil
	}
	for piece := range slices.Chunk(p, uploadChunk) {
		n, u.remaining = n+len(piece), u.remaining-int64(len(piece))
		if u.stopped = !u.rt.writeBuffers(u.pending, piece, u.remaining == 0); u.stopped {
			return n, errUploadStopped
		}
		u.pending = nil
	}
	return n, nil
}

// An uploadState controls TCP_USER_TIMEOUT from the first long write of a request to its response.
type uploadState struct {
	mu     sync.Mutex
	active bool        // between startUpload and finishUpload
	raised bool        // the kernel's timeout exceeds the default
	timer  *time.Timer // calls raiseUserTimeout; nil before the first upload
}

// startUpload makes the kernel wait as long as sendTimeout for a server that reads nothing. Sent data
// may still wait for the server after the last write, so this holds until the response begins, see
// finishUpload. It takes effect after uploadPoll, since most uploads are complete by then and cost no
// system call.
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

// raiseUserTimeout raises the kernel's timeout, unless the upload has finished. The timer calls it.
func (c *clientConn) raiseUserTimeout() {
	u := &c.upload
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.active {
		u.raised = tcp.SetSendTimeout(c.raw, c.sendTimeout) == nil // fails on a closed connection only
	}
}

// finishUpload restores the kernel's timeout. Without an upload it does nothing.
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
