// Package http1 is the client's connection of the hot path: the mirror of package llmserver/http1.
//
// A [Server] stands before an http.Server and serves itself what is surely plain: HTTP/1.1 over TCP, a head of at most
// 4 KiB with fields that can be understood in one way only, a body of declared length. Whatever else comes first on a
// connection, or later, makes it net/http's for the rest of its life, with all bytes that it has not been answered for. So h2c,
// chunked uploads, Expect, HEAD, strange and hostile bytes have net/http's rules and answers, and there is nothing here
// to judge them by. Only a preface of HTTP/2 that comes later ends the connection: for net/http it would be the first.
//
// # What it saves
//
// To hear that a client has left while its request is served, net/http reads ahead in a goroutine of its own, and wakes
// it and sets deadlines several times per request. Here package hangup hears it for all connections, and deadlines
// are armed only when something waits (see deadline). net/http keeps two buffers of 4 KiB per connection, and two more per
// request; here there are pages only while bytes are in them: a connection that waits for a request, or a stream
// between two events, holds none. An answer that is short is one write, and so is an event.
//
// # What handlers may rely on
//
// All that net/http promises for HTTP/1.1, but for Hijack and CloseNotify, which are not there. A request's context ends also
// when its client has half-closed the connection, from the first byte of its body on. Deadlines that passed while
// nothing waited go unnoticed. What of a request's body is left unread is read, up to 256 KiB, before the head of the answer is sent.
package http1
