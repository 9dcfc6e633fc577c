package http1

import (
	"net"
	"net/http"
)

// ResetAborted returns a handler that serves by h, and resets the connection when h panics within a
// response to a client of HTTP/1.0 that has no Content-Length. The end of such a response is the end
// of its connection, so after the usual close it would look complete. (What cannot be told from its
// end otherwise, as with HTTP/1.1, is better closed: a reset may overtake the last bytes.)
//
// The connection is taken from net/http by Hijack, and its ConnState becomes StateHijacked.
func ResetAborted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoAtLeast(1, 1) {
			h.ServeHTTP(w, r)
			return
		}
		returned := false
		defer func() {
			if !returned && len(w.Header()["Content-Length"]) == 0 {
				resetConn(w)
			}
		}()
		h.ServeHTTP(w, r)
		returned = true
	})
}

// reset ends a connection of net/http so that the peer reads an error in place of the end. TLS says
// no goodbye, which would be an end, too.
func resetConn(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return // the connection has been closed
	}
	inner := conn
	for {
		outer, ok := inner.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		inner = outer.NetConn()
	}
	if tcp, ok := inner.(interface{ SetLinger(seconds int) error }); ok {
		_ = tcp.SetLinger(0) // fails on a closed connection only
	}
	inner.Close()
	conn.Close() // of TLS: it has nothing left to close
}
