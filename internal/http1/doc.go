// Package http1 is HTTP/1.1 for the request path: a [Server] for clients and a [Client] for upstream
// servers. Both drive a connection from the goroutine of its request and read and write the socket
// directly. What they do not handle themselves is left to net/http.
//
// # Server
//
// A [Server] wraps an http.Server. It handles simple connections itself: HTTP/1.1 over TCP, a
// request header of at most 4 KiB whose fields have one possible meaning, and a body of declared
// length. At the first other request, a connection and all bytes of it that belong to no completed
// request are handed over to net/http for good. So h2c, chunked uploads, Expect, HEAD and malformed
// or hostile input are subject to net/http's rules. An HTTP/2 preface after the first request closes
// the connection, because net/http would accept one only at its beginning.
//
// To notice a disconnect while a request is being served, net/http reads ahead in a goroutine of its
// own, which it wakes several times per request. A Server uses tcp.WatchClose, one goroutine for all
// connections. It arms a deadline only when a read or write has to wait. It holds a buffer only
// while there are bytes in it: a connection that waits for a request, or an event stream between two
// events, holds none. A short response is one write, and so is an event.
//
// Handlers may rely on everything that net/http promises for HTTP/1.1 except Hijack and CloseNotify.
// Three differences: the context of a request also ends when its client has half-closed the
// connection; a deadline that passes while no read or write waits has no effect; and before the
// response header is sent, up to 256 KiB of unread request body are discarded.
//
// # Client
//
// A [Client] holds the connections to one upstream server. net/http's transport runs two goroutines
// per connection and hands each request and response over between them. Here the goroutine that
// called Do writes the request and reads the response. A usual request is one write. The response
// header is read into a pooled page. After that each Read of the body is one read of the socket into
// the caller's buffer, with chunked framing removed in place. A stream that has begun holds no
// buffer. An idle connection is not watched; it is checked when it is taken for reuse.
//
// The end of a request's context half-closes its connection at once, which servers treat as a
// disconnect. Do, or Close of the response body, then returns when the server has closed its side as
// well, or after 250 ms, and the connection is closed. A caller that counts the requests in progress
// at the server therefore does not release one while the server is still busy with it.
//
// Responses are interpreted as net/http does, or refused. Refused, although net/http accepts them,
// are: folded header lines, a space before the colon, versions other than HTTP/1.x, a status below
// 100, transfer codings in HTTP/1.0, status 101, a chunk size of 2^63 or more, more than 4 KiB of
// excess chunk framing, and trailers that do not end at their first empty line. A Content-Length
// beside chunked coding is ignored, as by net/http, and the connection is not reused. Header fields
// other than those of the framing are passed on unchanged: no Cache-Control is derived from Pragma.
package http1
