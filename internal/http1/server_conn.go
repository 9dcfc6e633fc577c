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

// phase is what a connection is at:
//
//	heading ⇄ idle     its head has not come whole, nor begun to come
//	heading, idle → busy → idle     a request is being answered
//	heading, idle → over     closed by its peer or by the server, or handed over
//	busy → over
//
// Every edge is one CAS, so that the server closes a connection that waits only while it does, and a request that has come
// whole is answered.
type connState uint64

const (
	stateHeader connState = iota
	stateIdle
	stateActive
	stateClosed
)

// A state is a phase, and by the server's clock when it began.
type timedState uint64

func newTimedState(p connState, since uint32) timedState {
	return timedState(p)<<32 | timedState(since)
}
func (s timedState) state() connState { return connState(s >> 32) }
func (s timedState) since() uint32    { return uint32(s) }

// A conn is a client's connection. Its goroutine reads requests and answers them, one after the other.
type serverConn struct {
	rawConn
	server     *Server
	ctx        context.Context // of the connection: values alone
	remoteAddr string
	watch      tcp.Watch
	state      atomic.Uint64

	clientGone atomic.Bool                    // the client has left, or been cut off
	active     atomic.Pointer[responseWriter] // to be told so; nil between requests

	unread      []byte // what was read and not taken
	page        *page  // that rest lies in; nil if it is empty
	hadRequest  bool   // there has been a request before
	lastWasPOST bool   // and it was a POST
}

// newConn makes the connection of an accepted one, which must be watched.
func newServerConn(s *Server, nc *net.TCPConn) (*serverConn, error) {
	c := &serverConn{server: s, remoteAddr: nc.RemoteAddr().String()}
	c.ctx = context.WithValue(context.WithValue(context.Background(), http.ServerContextKey, s.fallback),
		http.LocalAddrContextKey, nc.LocalAddr())
	c.state.Store(uint64(newTimedState(stateHeader, s.ticks.Load())))
	if err := c.init(nc); err != nil {
		return nil, err
	}
	var err error
	c.watch, err = tcp.WatchClose(nc, c.onPeerClosed)
	return c, err
}

// left is called when the client has gone, and tells the handler at work.
func (c *serverConn) onPeerClosed() {
	c.clientGone.Store(true)
	if x := c.active.Load(); x != nil {
		x.cancel()
	}
}

// serve owns the connection until it is over.
func (c *serverConn) serve() {
	handedOver := false
	defer func() {
		if !handedOver {
			c.watch.Stop()
			c.TCPConn.Close()
		}
		c.releasePage()
		c.server.untrack(c)
	}()
	if plain := c.serveRequests(); plain || c.hadRequest && bytes.HasPrefix(c.unread, []byte("PRI")) || !c.transition(stateClosed) {
		return // HTTP/2 begins at the beginning
	}
	handedOver = true
	c.watch.Stop()
	c.readDeadline.beforeIO() // takes back what is armed
	c.writeDeadline.beforeIO()
	c.server.fallbackConns.handOff(&handoffConn{tcp.Wrap(c.TCPConn), bytes.NewReader(bytes.Clone(c.unread))})
}

// requests answers one after the other, and returns when there will be none; if not plain, the next one is net/http's.
func (c *serverConn) serveRequests() (plain bool) {
	for {
		x, plain := c.readRequest()
		if x == nil {
			return plain
		}
		if !c.serveRequest(x) || !c.transition(stateIdle) || c.server.stopping.Load() {
			return true
		}
	}
}

// turn enters a phase; false if the server has ended the connection. Only the connection's goroutine calls it.
func (c *serverConn) transition(to connState) bool {
	now := c.state.Load()
	return timedState(now).state() != stateClosed && c.state.CompareAndSwap(now, uint64(newTimedState(to, c.server.ticks.Load())))
}

// cut ends the connection unless it has moved on from the state that it was seen in. Any goroutine may call it.
func (c *serverConn) closeIf(seen timedState) {
	if c.state.CompareAndSwap(uint64(seen), uint64(newTimedState(stateClosed, 0))) {
		c.TCPConn.Close() // there is no request to tell
	}
}

// next reads the head of the next request. Without one, plain tells whether the connection has ended; else what has been
// read of it is net/http's.
func (c *serverConn) readRequest() (x *responseWriter, plain bool) {
	skipped := 0
	for lines := 0; ; {
		for c.lastWasPOST && skipped < 4 && len(c.unread) > 0 && (c.unread[0] == '\r' || c.unread[0] == '\n') {
			c.unread, skipped = c.unread[1:], skipped+1 // net/http's tolerance: some old clients end a body that way
		}
		if len(c.unread) == 0 {
			c.releasePage()
		}
		if end := bytes.Index(c.unread, []byte("\r\n\r\n")); end >= 0 {
			return c.startRequest(string(c.unread[:end+2]), end+4)
		}
		begun := !c.hadRequest && len(c.unread) > 0 || skipped+len(c.unread) >= 4 // less than that net/http does not look at
		if n := bytes.LastIndexByte(c.unread, '\n') + 1; begun && n > lines {
			if lines = n; !parseSimple(string(c.unread[:n]), new(http.Request)) {
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
			return nil, err != io.EOF || !begun // to half of a head net/http says that it is bad
		}
	}
}

// begin makes the exchange of a head that has come whole, in size bytes.
func (c *serverConn) startRequest(lines string, size int) (x *responseWriter, plain bool) {
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

// fill reads more into the page.
func (c *serverConn) fillPage() error {
	if c.page == nil {
		p, n, err := c.readPage()
		if err != nil {
			return err
		}
		c.page, c.unread = p, p[:n]
		return nil
	}
	if len(c.unread) == cap(c.unread) { // at the end of the page, not all of it
		c.unread = c.page[:copy(c.page[:], c.unread)]
	}
	n, err := c.readRaw(c.unread[len(c.unread):cap(c.unread)])
	c.unread = c.unread[:len(c.unread)+n]
	return err
}

func (c *serverConn) releasePage() {
	if c.page != nil {
		pages.Put(c.page)
		c.page, c.unread = nil, nil
	}
}

// answer has the handler answer, and tells whether there may be another request.
func (c *serverConn) serveRequest(x *responseWriter) (again bool) {
	c.active.Store(x)
	if c.clientGone.Load() {
		x.cancel()
	}
	returned := false
	defer func() {
		c.active.Store(nil)
		x.cancel()
		if !again {
			if !returned && x.closeDelimited() {
				_ = c.SetLinger(0) // a reset: after the usual close the response would look complete
			}
			c.TCPConn.Close() // so that nobody still reads the body
		}
		x.release()
	}()
	returned = c.server.runHandler(x)
	return returned && x.finishResponse()
}

// lingering is how long a client has to read the answer to a request that was not read whole. Were the connection closed
// at once, its kernel might drop the answer for what it sent too much.
const serverLingerTimeout = 500 * time.Millisecond

// linger ends the connection's sending half, and drops what still comes.
func (c *serverConn) lingeringClose() {
	_ = c.TCPConn.CloseWrite()
	until := time.Now().Add(serverLingerTimeout)
	c.readDeadline.set(until)
	p := pages.Get().(*page)
	defer pages.Put(p)
	for time.Now().Before(until) {
		if _, err := c.readRaw(p[:]); err != nil {
			return
		}
	}
}
