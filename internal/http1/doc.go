// Package http1 is HTTP/1.1 for the request path: a [Server] for clients and a [Client] for
// upstream servers. Both drive a connection from the goroutine of the current request and read and
// write the socket directly. A Server leaves everything else to net/http.
//
// # Server
//
// A [Server] wraps an http.Server. Simple connections are served directly: HTTP/1.1 over TCP, a
// request header of at most 4 KiB whose fields have one possible meaning, and a body of declared
// length. At the first other request, the connection is handed over to net/http for good, together
// with all bytes that belong to no completed request. So h2c, chunked uploads, Expect, HEAD and
// malformed or hostile input are subject to net/http's rules. An HTTP/2 preface after the first
// request closes the connection, because net/http would accept a preface only at the beginning.
//
// To notice a disconnect while a request is being served, net/http reads ahead in another
// goroutine, woken several times per request. A Server uses tcp.WatchClose, one goroutine for all
// connections. A deadline is armed only when a read or write has to wait. A connection holds a
// buffer only for bytes in transit: waiting for a request, or between two events of a stream, a
// connection holds none. A short response is one write, and so is an event.
//
// Handlers may rely on all promises of net/http for HTTP/1.1 except Hijack and CloseNotify. Three
// differences: the context of a request also ends when the client half-closes the connection; a
// deadline passing while no read or write waits has no effect; and before the response header is
// sent, up to 256 KiB of unread request body are discarded.
//
// The context of a request is a [Context], which callers may also derive from it: the same as
// context.WithCancelCause with less work per request.
//
// # Client
//
// A [Client] holds the connections to one upstream server. net/http's transport runs two goroutines
// per connection and hands each request and response over between them. Here the goroutine calling
// Do writes the request and reads the response header, and the goroutine calling Read reads the
// body. A usual request is one write. The response header is read into a pooled page. After the
// header, each Read of the body is one read of the socket into the caller's buffer, with chunked
// framing removed in place. A stream in progress holds no buffer. Idle connections are not watched;
// each is checked when taken for reuse.
//
// The end of a request's context half-closes the connection at once, which servers treat as a
// disconnect. Do, or Close of the response body, then returns when the server has closed the other
// half as well, or after 250 ms, and the connection is closed. So a caller counting the requests in
// progress at the server does not release one while the server is still busy with the request.
//
// Responses are interpreted as in net/http, or refused. Refused, although net/http accepts them,
// are: folded header lines, a space before the colon, versions other than HTTP/1.x, a status below
// 100, transfer codings in HTTP/1.0, status 101, a chunk size of 2^63 or more, more than 4 KiB of
// excess chunk framing, and trailers with lines after the first empty line. A Content-Length beside
// chunked coding is ignored, as in net/http, and the connection is not reused. Header fields other
// than the framing are passed on unchanged: no Cache-Control is derived from Pragma.
package http1
