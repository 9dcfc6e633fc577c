// Package tcp extends package net's TCP connections:
//
//   - Listen and Dialer set keepalive and user timeouts that fit each other. SetSendTimeout raises
//     the user timeout for peers that are alive and read nothing.
//   - WatchClose calls a function when the peer closes a connection, without a pending read.
//   - Read, Write and Wrap make system calls without notifying the Go scheduler.
//   - Exhausted reports whether an error is caused by this process's own lack of descriptors, ports
//     or memory.
//
// # Watching for disconnects
//
// A proxy waiting for a response does not read from its client, and so does not see a disconnect.
// The usual remedies cost every request a goroutine that reads ahead, or periodic system calls.
// WatchClose registers the connection once with an epoll instance served by one goroutine for all
// connections. Data and requests wake nothing; a close wakes the goroutine. Linux only: elsewhere
// WatchClose returns ErrUnsupported.
//
// # System calls without the scheduler
//
// Go notifies its scheduler around each system call, so that another goroutine can have the
// processor if the call blocks. After an idle period the first such call also wakes the runtime's
// monitor thread, which costs two context switches per event where events are rare. A non-blocking
// read or write on a socket is short and needs no notification. Wrap uses the poller, the deadlines
// and the errors of package net. Under the race detector Read and Write are plain system calls.
// Other systems than Linux have no Read and Write, and Wrap returns its argument.
package tcp
