// Package tcp holds what berth does with TCP connections beyond package net:
//
//   - Listen and Dialer: keepalive and user timeouts that fit each other on every connection, and
//     SetSendTimeout for a peer that is there and reads nothing.
//   - WatchClose: a callback when the peer closes a connection that nobody reads.
//   - Read, Write and Wrap: system calls that the Go scheduler does not account for.
//   - Exhausted: whether an error is this process's own lack of descriptors, ports or memory.
//
// # Watching for disconnects
//
// A proxy that waits for a response does not read from its client, and so does not see it close. The
// usual remedies cost every request something: a goroutine that reads ahead, or a system call now
// and then. WatchClose registers the connection once with an epoll instance that one goroutine
// serves for all connections. Data and requests wake nothing; a close wakes that goroutine. Linux
// only: elsewhere WatchClose returns ErrUnsupported.
//
// # System calls without the scheduler
//
// Go notifies its scheduler around each system call, so that another goroutine can have the
// processor if the call blocks. The first such call after an idle period also wakes the runtime's
// monitor thread, which costs two context switches per event where events are rare. A non-blocking
// read or write on a socket is short and needs none of that. Read, Write and Wrap use the poller,
// the deadlines and the errors of package net. Elsewhere than on Linux, and under the race detector,
// they are plain system calls or package net itself.
package tcp
