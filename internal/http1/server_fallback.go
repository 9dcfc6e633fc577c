package http1

import (
	"io"
	"net"
	"sync"
)

// A fallbackListener is the listener of the wrapped http.Server: it accepts the connections that are
// handed over.
type fallbackListener struct {
	address net.Addr
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func newFallbackListener() *fallbackListener {
	return &fallbackListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// handOff passes c to Accept, for which it waits, or closes c if the listener is closed.
func (l *fallbackListener) handOff(c net.Conn) {
	select {
	case l.conns <- c:
	case <-l.closed:
		c.Close()
	}
}

func (l *fallbackListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *fallbackListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *fallbackListener) Addr() net.Addr { return l.address }

// A handoffConn is a connection with the bytes that were read from it before. It hides ReadFrom and
// WriteTo of the TCP connection, which would skip those bytes.
type handoffConn struct {
	net.Conn
	unread io.Reader // nil once it is read
}

func (c *handoffConn) Read(p []byte) (int, error) {
	if c.unread != nil {
		if n, err := c.unread.Read(p); err == nil {
			return n, nil
		}
		c.unread = nil
	}
	return c.Conn.Read(p)
}

// NetConn returns the connection itself.
func (c *handoffConn) NetConn() net.Conn { return c.Conn }

func (c *handoffConn) CloseWrite() error {
	return c.Conn.(interface{ CloseWrite() error }).CloseWrite()
}
