package http1

import (
	"io"
	"net"
	"sync"
)

// A fallbackListener is the listener of the wrapped http.Server. Accept returns the connections
// handed over. All methods may be called from any goroutine.
type fallbackListener struct {
	address net.Addr
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func newFallbackListener() *fallbackListener {
	return &fallbackListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// handOffConn passes c to Accept and blocks until c is accepted, or closes c if the listener is
// closed. c belongs to the listener from the call on.
func (l *fallbackListener) handOffConn(c net.Conn) {
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

// A handoffConn is a connection with the bytes already read from the connection. ReadFrom and
// WriteTo of the TCP connection are hidden, because they would skip these bytes.
type handoffConn struct {
	net.Conn
	unread io.Reader // nil at the end
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

// NetConn returns the wrapped connection.
func (c *handoffConn) NetConn() net.Conn { return c.Conn }

func (c *handoffConn) CloseWrite() error {
	return c.Conn.(interface{ CloseWrite() error }).CloseWrite()
}
