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
type phase uint64

const (
	heading phase = iota
	idle
	busy
	over
)

// A state is a phase, and by the server's clock when it began.
type state uint64

func stateOf(p phase, since uint32) state { return state(p)<<32 | state(since) }
func (s state) phase() phase              { return phase(s >> 32) }
func (s state) since() uint32             { return uint32(s) }

// A conn is a client's connection. Its goroutine reads requests and answers them, one after the other.
type conn struct {
	wire
	server *Server
	ctx    context.Context // of the connection: values alone
	remote string
	watch  tcp.Watch
	state  atomic.Uint64

	gone    atomic.Bool              // the client has left, or been cut off
	current atomic.Pointer[exchange] // to be told so; nil between requests

	rest   []byte // what was read and not taken
	page   *page  // that rest lies in; nil if it is empty
	served bool   // there has been a request before
	posted bool   // and it was a POST
}

// newConn makes the connection of an accepted one, which must be watched.
func newConn(s *Server, nc *net.TCPConn) (*conn, error) {
	c := &conn{server: s, remote: nc.RemoteAddr().String()}
	c.ctx = context.WithValue(context.WithValue(context.Background(), http.ServerContextKey, s.fallback),
		http.LocalAddrContextKey, nc.LocalAddr())
	c.state.Store(uint64(stateOf(heading, s.clock.Load())))
	if err := c.open(nc); err != nil {
		return nil, err
	}
	var err error
	c.watch, err = tcp.WatchClose(nc, c.left)
	return c, err
}

// left is called when the client has gone, and tells the handler at work.
func (c *conn) left() {
	c.gone.Store(true)
	if x := c.current.Load(); x != nil {
		x.cancel()
	}
}

// serve owns the connection until it is over.
func (c *conn) serve() {
	handedOver := false
	defer func() {
		if !handedOver {
			c.watch.Stop()
			c.TCPConn.Close()
		}
		c.dropPage()
		c.server.forget(c)
	}()
	if plain := c.requests(); plain || c.served && bytes.HasPrefix(c.rest, []byte("PRI")) || !c.turn(over) {
		return // HTTP/2 begins at the beginning
	}
	handedOver = true
	c.watch.Stop()
	c.reads.begin() // takes back what is armed
	c.writes.begin()
	c.server.others.take(&handed{tcp.Wrap(c.TCPConn), bytes.NewReader(bytes.Clone(c.rest))})
}

// requests answers one after the other, and returns when there will be none; if not plain, the next one is net/http's.
func (c *conn) requests() (plain bool) {
	for {
		x, plain := c.next()
		if x == nil {
			return plain
		}
		if !c.answer(x) || !c.turn(idle) || c.server.stopping.Load() {
			return true
		}
	}
}

// turn enters a phase; false if the server has ended the connection. Only the connection's goroutine calls it.
func (c *conn) turn(to phase) bool {
	now := c.state.Load()
	return state(now).phase() != over && c.state.CompareAndSwap(now, uint64(stateOf(to, c.server.clock.Load())))
}

// cut ends the connection unless it has moved on from the state that it was seen in. Any goroutine may call it.
func (c *conn) cut(seen state) {
	if c.state.CompareAndSwap(uint64(seen), uint64(stateOf(over, 0))) {
		c.TCPConn.Close() // there is no request to tell
	}
}

// next reads the head of the next request. Without one, plain tells whether the connection has ended; else what has been
// read of it is net/http's.
func (c *conn) next() (x *exchange, plain bool) {
	skipped := 0
	for lines := 0; ; {
		for c.posted && skipped < 4 && len(c.rest) > 0 && (c.rest[0] == '\r' || c.rest[0] == '\n') {
			c.rest, skipped = c.rest[1:], skipped+1 // net/http's tolerance: some old clients end a body that way
		}
		if len(c.rest) == 0 {
			c.dropPage()
		}
		if end := bytes.Index(c.rest, []byte("\r\n\r\n")); end >= 0 {
			return c.begin(string(c.rest[:end+2]), end+4)
		}
		begun := !c.served && len(c.rest) > 0 || skipped+len(c.rest) >= 4 // less than that net/http does not look at
		if n := bytes.LastIndexByte(c.rest, '\n') + 1; begun && n > lines {
			if lines = n; !parse(string(c.rest[:n]), new(http.Request)) {
				return nil, false
			}
		}
		if state(c.state.Load()).phase() == idle && len(c.rest) > 0 && !c.turn(heading) {
			return nil, true
		}
		if len(c.rest) == len(page{}) {
			return nil, false
		}
		if err := c.fill(); err != nil {
			return nil, err != io.EOF || !begun // to half of a head net/http says that it is bad
		}
	}
}

// begin makes the exchange of a head that has come whole, in size bytes.
func (c *conn) begin(lines string, size int) (x *exchange, plain bool) {
	var r http.Request
	if !parse(lines, &r) || r.Host == "" {
		return nil, false
	}
	c.rest = c.rest[size:]
	if len(c.rest) == 0 {
		c.dropPage()
	}
	if !c.turn(busy) {
		return nil, true
	}
	c.served, c.posted = true, r.Method == http.MethodPost
	r.RemoteAddr = c.remote
	return newExchange(c, &r), true
}

// fill reads more into the page.
func (c *conn) fill() error {
	if c.page == nil {
		p, n, err := c.readPage()
		if err != nil {
			return err
		}
		c.page, c.rest = p, p[:n]
		return nil
	}
	if len(c.rest) == cap(c.rest) { // at the end of the page, not all of it
		c.rest = c.page[:copy(c.page[:], c.rest)]
	}
	n, err := c.read(c.rest[len(c.rest):cap(c.rest)])
	c.rest = c.rest[:len(c.rest)+n]
	return err
}

func (c *conn) dropPage() {
	if c.page != nil {
		pages.Put(c.page)
		c.page, c.rest = nil, nil
	}
}

// answer has the handler answer, and tells whether there may be another request.
func (c *conn) answer(x *exchange) (again bool) {
	c.current.Store(x)
	if c.gone.Load() {
		x.cancel()
	}
	returned := false
	defer func() {
		c.current.Store(nil)
		x.cancel()
		if !again {
			if !returned && x.endsWithConnection() {
				_ = c.SetLinger(0) // a reset: after the usual close the response would look complete
			}
			c.TCPConn.Close() // so that nobody still reads the body
		}
		x.end()
	}()
	returned = c.server.handle(x)
	return returned && x.finish()
}

// lingering is how long a client has to read the answer to a request that was not read whole. Were the connection closed
// at once, its kernel might drop the answer for what it sent too much.
const lingering = 500 * time.Millisecond

// linger ends the connection's sending half, and drops what still comes.
func (c *conn) linger() {
	_ = c.TCPConn.CloseWrite()
	until := time.Now().Add(lingering)
	c.reads.set(until)
	p := pages.Get().(*page)
	defer pages.Put(p)
	for time.Now().Before(until) {
		if _, err := c.read(p[:]); err != nil {
			return
		}
	}
}
