package http1

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"berth/internal/tcp"
)

// A serverConn is a client's connection. The goroutine of serveConn owns the connection, reads
// requests and runs the handler, one request after the other. Other goroutines may use only state,
// clientGone, active and the methods documented for any goroutine.
type serverConn struct {
	rawConn
	server     *Server
	ctx        context.Context // parent of the requests' contexts, with net/http's two values
	remoteAddr string
	watch      tcp.Watch
	state      atomic.Uint64 // a timedState

	clientGone atomic.Bool                    // the client has disconnected, or the server is closing
	active     atomic.Pointer[responseWriter] // its request ends at a disconnect; nil between requests

	readBuffer
	hadRequest  bool // there was an earlier request
	lastWasPOST bool // that request was a POST
}

// newServerConn returns the connection for an accepted TCP connection. An error means that its
// disconnect cannot be watched for; nc is then unchanged and still belongs to the caller.
func newServerConn(s *Server, nc *net.TCPConn) (*serverConn, error) {
	c := &serverConn{server: s, remoteAddr: nc.RemoteAddr().String()}
	c.ctx = context.WithValue(context.WithValue(context.Background(), http.ServerContextKey, s.fallback),
		http.LocalAddrContextKey, nc.LocalAddr())
	c.state.Store(uint64(newTimedState(stateHeader, s.ticks.Load())))
	if err := c.initConn(nc); err != nil {
		return nil, err
	}
	var err error
	c.watch, err = tcp.WatchClose(nc, c.onPeerClosed)
	return c, err
}

// onPeerClosed records the disconnect of the client and cancels the active request. Any goroutine
// may call onPeerClosed, more than once; it does not block.
func (c *serverConn) onPeerClosed() {
	c.clientGone.Store(true)
	if w := c.active.Load(); w != nil {
		w.cancel()
	}
}

// serveConn serves the connection until closed or handed over, and releases everything of the
// connection before returning. Called once, as a goroutine.
func (c *serverConn) serveConn() {
	handedOver := false
	defer func() {
		if !handedOver {
			c.watch.Stop()
			c.TCPConn.Close()
		}
		c.releasePage()
		c.server.untrackConn(c)
	}()
	ended := c.serveRequests()
	lateHTTP2 := c.hadRequest && bytes.HasPrefix(c.unread, []byte("PRI")) // too late for a preface
	if ended || lateHTTP2 || !c.transition(stateClosed) {
		return
	}
	handedOver = true
	c.watch.Stop()
	c.readDeadline.beforeIO() // disarms a deadline of a past request
	c.writeDeadline.beforeIO()
	c.server.fallbackConns.handOffConn(&handoffConn{tcp.Wrap(c.TCPConn), bytes.NewReader(bytes.Clone(c.unread))})
}

// serveRequests serves one request after the other. It returns true at the end of the connection,
// and false if the next request, with the beginning in unread, is for net/http.
func (c *serverConn) serveRequests() (ended bool) {
	for {
		w, ended := c.readRequest()
		if w == nil {
			return ended
		}
		if !c.serveRequest(w) || !c.transition(stateIdle) || c.server.stopping.Load() {
			return true
		}
	}
}

// readRequest reads the header of the next request, and blocks until then. If w is nil, ended is
// true at the end of the connection, and false if the next request is for net/http.
func (c *serverConn) readRequest() (w *responseWriter, ended bool) {
	skipped := 0
	for checked := 0; ; {
		for c.lastWasPOST && skipped < 4 && len(c.unread) > 0 && (c.unread[0] == '\r' || c.unread[0] == '\n') {
			// Tolerated, as in net/http: some old clients send a line break after the body.
			c.unread, skipped = c.unread[1:], skipped+1
		}
		if len(c.unread) == 0 {
			c.releasePage()
		}
		if end := bytes.Index(c.unread, []byte("\r\n\r\n")); end >= 0 {
			return c.startRequest(string(c.unread[:end+2]), end+4)
		}
		// After a first request net/http ignores fewer than 4 bytes.
		begun := !c.hadRequest && len(c.unread) > 0 || skipped+len(c.unread) >= 4
		if lines := bytes.LastIndexByte(c.unread, '\n') + 1; begun && lines > checked {
			if checked = lines; !parseSimple(string(c.unread[:lines]), new(http.Request)) {
				return nil, false
			}
		}
		if timedState(c.state.Load()).state() == stateIdle && len(c.unread) > 0 && !c.transition(stateHeader) {
			return nil, true
		}
		if len(c.unread) == len(page{}) {
			return nil, false
		}
		if err := c.fillPage(); err != nil {
			return nil, err != io.EOF || !begun // net/http responds to a truncated header
		}
	}
}

// startRequest begins the request with a complete header of size bytes. lines is the header without
// the empty line. The results are those of readRequest.
func (c *serverConn) startRequest(lines string, size int) (w *responseWriter, ended bool) {
	var r http.Request
	if !parseSimple(lines, &r) || r.Host == "" {
		return nil, false
	}
	c.unread = c.unread[size:]
	if len(c.unread) == 0 {
		c.releasePage()
	}
	if !c.transition(stateActive) {
		return nil, true
	}
	c.hadRequest, c.lastWasPOST = true, r.Method == http.MethodPost
	r.RemoteAddr = c.remoteAddr
	return newResponseWriter(c, &r), true
}

// fillPage reads once, and blocks until bytes have arrived. The page is taken after the wait, so a
// waiting connection holds none.
func (c *serverConn) fillPage() error {
	if c.page == nil {
		p, n, err := c.readPage()
		if err != nil {
			return err
		}
		c.page, c.unread = p, p[:n]
		return nil
	}
	if len(c.unread) == cap(c.unread) { // at the end of the page, but not all of it
		c.unread = c.page[:copy(c.page[:], c.unread)]
	}
	n, err := c.readRaw(c.unread[len(c.unread):cap(c.unread)])
	c.unread = c.unread[:len(c.unread)+n]
	return err
}

// serveRequest runs the handler and sends the rest of the response. It reports whether the
// connection can be reused; if not, the connection is closed.
func (c *serverConn) serveRequest(w *responseWriter) (reusable bool) {
	c.active.Store(w)
	if c.clientGone.Load() {
		w.cancel()
	}
	returned := false
	defer func() {
		c.active.Store(nil)
		w.cancel()
		if !reusable {
			if !returned && w.closeDelimited() {
				_ = c.SetLinger(0) // a reset: after an orderly close the response would look complete
			}
			c.TCPConn.Close() // ends a read of the body in another goroutine
		}
		w.cleanUp()
	}()
	returned = c.server.runHandler(w)
	return returned && w.finishResponse()
}

// serverLingerTimeout bounds the time for a client to read the response to a request not read
// completely. Closing at once would reset the connection because of the unread data, and the
// client's kernel could discard the response.
const serverLingerTimeout = 500 * time.Millisecond

// lingeringClose closes the sending half and discards further data until the client has closed the
// other half, or for serverLingerTimeout. It blocks until then. The caller closes the connection.
func (c *serverConn) lingeringClose() {
	_ = c.TCPConn.CloseWrite()
	until := time.Now().Add(serverLingerTimeout)
	c.readDeadline.setTime(until)
	p := pages.Get().(*page)
	defer pages.Put(p)
	for time.Now().Before(until) {
		if _, err := c.readRaw(p[:]); err != nil {
			return
		}
	}
}
