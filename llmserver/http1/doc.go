// Package http1 is the upstream connection: HTTP/1.1 to an engine or an agent over http://, driven
// by the request's own goroutine.
//
// A [Client] is a llmserver.Backend that keeps every promise of llmserver.HTTP
// and costs less. net/http's transport runs two goroutines per connection and
// hands each request and answer over between them; here the goroutine that wants the
// answer writes the request and reads the answer itself. A usual request is one
// write. The head of the answer is read into a pooled page; from then on each
// Read of the body is one read of the socket, straight into the caller's
// buffer, and chunked framing is taken out in place. A stream that has begun holds no buffer.
//
// Nothing watches a connection while nobody reads: whether an idle one is
// still open is looked at when it is taken for reuse.
//
// # Aborted requests
//
// The end of the request's context half-closes the connection at once, whatever is being done on
// it: servers take that for a disconnect. Do, or Close of the body, then returns when the replica has
// closed its side too, or after 250 ms, and the connection is closed. A caller that gives the slot
// back after that does not give it back while the replica is still busy with the request.
//
// # What is an answer
//
// Answers are understood as net/http understands them, or refused. Refused
// although net/http takes them are: folded header lines, a space before the colon, versions
// other than HTTP/1.x, a status below 100, transfer codings in HTTP/1.0, an answer of 101,
// a chunk's size of 2^63 and more, over 4 KiB of chunk framing in excess of a fair share, and trailers that
// are not closed by their first empty line. A Content-Length beside chunked
// coding is dropped, as by net/http, and the connection is not used again.
// Header fields are left as they came, but for the framing ones: no Cache-Control is made up from Pragma.
package http1
