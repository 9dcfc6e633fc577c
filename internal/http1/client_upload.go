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
	// singleWriteMax is the amount that an empty socket buffer accepts without waiting for the
	// server.
	singleWriteMax = 16 << 10
	// uploadPoll is how long a write may block before the connection is checked for an early
	// response of a server that has stopped reading.
	uploadPoll = 100 * time.Millisecond
	// uploadChunk is the amount sent between two checks for an early response.
	uploadChunk = 1 << 20
)

// A Sender is a request body in memory. SendTo writes the unread part to w, like the WriteTo of
// io.WriterTo, and may hold a lock needed by Close. The name differs from WriteTo because
// net/http's transport calls WriteTo and could deadlock on such a lock.
type Sender interface{ SendTo(w io.Writer) error }

// errUploadStopped ends an upload whose remainder is not wanted by the server.
var errUploadStopped = errors.New("the server has responded or closed the connection")

// An uploadWriter is the destination of a Sender, bounded by the announced length. An uploadWriter
// belongs to the goroutine of the round trip.
type uploadWriter struct {
	rt        *roundTrip
	pending   []byte // the header and short writes; sent with the next write
	remaining int64
	stopped   bool
}

// Write sends p, or keeps p for the next write if more is to follow and both fit into one write.
// Bytes beyond the announced length are dropped.
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

// An uploadState controls TCP_USER_TIMEOUT from the first long write of a request to the beginning
// of the response. The owner of the connection calls startUpload and finishUpload, the goroutine of
// the timer raiseUserTimeout.
type uploadState struct {
	mu     sync.Mutex
	active bool        // between startUpload and finishUpload
	raised bool        // the kernel's timeout exceeds the default
	timer  *time.Timer // calls raiseUserTimeout; nil before the first upload
}

// startUpload makes the kernel wait as long as sendTimeout for a server that reads nothing. Sent
// data may be unread by the server after the last write, so the longer wait holds until
// finishUpload. The kernel is not called before uploadPoll: most uploads are complete by then and
// need no system call. Further calls during an upload do nothing.
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

// raiseUserTimeout raises the kernel's timeout, unless the upload has finished. Called in the
// goroutine of the timer.
func (c *clientConn) raiseUserTimeout() {
	u := &c.upload
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.active {
		u.raised = tcp.SetSendTimeout(c.raw, c.sendTimeout) == nil // fails on a closed connection only
	}
}

// finishUpload restores the kernel's timeout when the response has begun. Without an upload
// finishUpload does nothing. An upload without a response needs no finishUpload, because the
// connection is closed.
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
