package http1

import (
	"io"
	"net"
	"sync"
)

// others is a listener to which connections come that are not plain.
type fallbackListener struct {
	address net.Addr
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func newFallbackListener() *fallbackListener {
	return &fallbackListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// take gives c away: to who accepts it, or closed if nobody does any more.
func (o *fallbackListener) handOff(c net.Conn) {
	select {
	case o.conns <- c:
	case <-o.closed:
		c.Close()
	}
}

func (o *fallbackListener) Accept() (net.Conn, error) {
	select {
	case c := <-o.conns:
		return c, nil
	case <-o.closed:
		return nil, net.ErrClosed
	}
}

func (o *fallbackListener) Close() error {
	o.once.Do(func() { close(o.closed) })
	return nil
}

func (o *fallbackListener) Addr() net.Addr { return o.address }

// handed is a connection with what was read of it before.
type handoffConn struct {
	net.Conn // of TCP, whose ReadFrom and WriteTo must not be seen: they know nothing of rest
	unread   io.Reader
}

func (h *handoffConn) Read(p []byte) (int, error) {
	if h.unread != nil {
		if n, err := h.unread.Read(p); err == nil {
			return n, nil
		}
		h.unread = nil
	}
	return h.Conn.Read(p)
}

// NetConn returns the connection itself.
func (h *handoffConn) NetConn() net.Conn { return h.Conn }

func (h *handoffConn) CloseWrite() error {
	return h.Conn.(interface{ CloseWrite() error }).CloseWrite()
}
