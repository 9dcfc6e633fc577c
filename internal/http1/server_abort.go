package http1

import (
	"net"
	"net/http"
)

// ResetAborted returns a handler that runs h and resets the connection if h panics within a
// response to an HTTP/1.0 client that has no Content-Length. Such a response ends with the
// connection, so after an orderly close the response would look complete. A response with a marked
// end, as in HTTP/1.1, is better closed, because a reset may overtake the last bytes.
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

// resetConn closes a connection of net/http with a reset: the client reads an error instead of the
// end. The close_notify of TLS is skipped, because a close_notify would mark an end as well.
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
	conn.Close() // of TLS: there is nothing left to send
}
