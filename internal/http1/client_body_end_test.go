package http1

import (
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
)

// A reader that asks for exactly the body must not leave surplus bytes to the next request.
func TestClientSurplusAfterExactReadClosesConnection(t *testing.T) {
	for surplus, again := range map[string]bool{"": true, "HTTP/1.1 200 OK": false} {
		var p connPool
		rt := newRoundTrip(newPost(t.Context(), "/"), newClientConn(&scriptConn{data: []byte(smallResponse + surplus)}), &p)
		rt.reusable = true
		if err := rt.receiveResponse(); err != nil {
			t.Fatal(err)
		}
		if n, err := rt.response.Body.Read(make([]byte, 2)); n != 2 || err != io.EOF {
			t.Fatal(n, err)
		}
		if (p.popConn() != nil) != again {
			t.Errorf("with surplus %q: the connection is reused: %t", surplus, !again)
		}
		p.closePool()
	}
}

// A read may return bytes together with the error that ends the connection.
func TestClientBodyReadsBytesBeforeError(t *testing.T) {
	for _, c := range []struct {
		framing string
		want    error
	}{{"Content-Length: 5", io.EOF}, {"Connection: close", io.EOF}, {"Content-Length: 6", io.ErrUnexpectedEOF}} {
		header := "HTTP/1.1 200 OK\r\n" + c.framing + "\r\n\r\n"
		s := &scriptConn{data: []byte(header), finalErr: io.EOF}
		rt, err := receiveScripted("POST", s)
		if err != nil {
			t.Fatal(err)
		}
		rt.conn.Conn = &eofConn{scriptConn: scriptConn{data: []byte("hello")}}
		body, err := io.ReadAll(limitedReader{rt.response.Body, 100})
		if string(body) != "hello" || c.want == io.EOF && err != nil || c.want != io.EOF && err != c.want {
			t.Errorf("%s: %q, %v", c.framing, body, err)
		}
	}
}

// An eofConn returns io.EOF with its last bytes.
type eofConn struct{ scriptConn }

func (w *eofConn) Read(p []byte) (int, error) {
	n := copy(p, w.data)
	w.data = w.data[n:]
	return n, io.EOF
}

// A client may read the reason for a truncated response, but not the address of the server.
func TestClientBodyErrorHasNoAddress(t *testing.T) {
	reset := &net.OpError{Op: "read", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 9, 8, 7), Port: 8000}, Err: syscall.ECONNRESET}
	rt, err := receiveScripted("POST", &scriptConn{data: []byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe"), finalErr: reset})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(rt.response.Body); err == nil || !strings.Contains(err.Error(), "reset") || strings.Contains(err.Error(), "10.9.8.7") {
		t.Errorf("the body ended with %v", err)
	}
}
