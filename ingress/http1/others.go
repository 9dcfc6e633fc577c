package http1

import (
	"io"
	"net"
	"sync"
)

// others is a listener to which connections come that are not plain.
type others struct {
	address net.Addr
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func newOthers() *others {
	return &others{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// take gives c away: to who accepts it, or closed if nobody does any more.
func (o *others) take(c net.Conn) {
	select {
	case o.conns <- c:
	case <-o.closed:
		c.Close()
	}
}

func (o *others) Accept() (net.Conn, error) {
	select {
	case c := <-o.conns:
		return c, nil
	case <-o.closed:
		return nil, net.ErrClosed
	}
}

func (o *others) Close() error {
	o.once.Do(func() { close(o.closed) })
	return nil
}

func (o *others) Addr() net.Addr { return o.address }

// handed is a connection with what was read of it before.
type handed struct {
	net.Conn // of TCP, whose ReadFrom and WriteTo must not be seen: they know nothing of rest
	rest     io.Reader
}

func (h *handed) Read(p []byte) (int, error) {
	if h.rest != nil {
		if n, err := h.rest.Read(p); err == nil {
			return n, nil
		}
		h.rest = nil
	}
	return h.Conn.Read(p)
}

// NetConn returns the connection itself.
func (h *handed) NetConn() net.Conn { return h.Conn }

func (h *handed) CloseWrite() error { return h.Conn.(interface{ CloseWrite() error }).CloseWrite() }
