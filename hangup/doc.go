// Package hangup tells when the peer of a TCP connection has gone, without reading from it.
//
// A server or proxy that is busy with a request reads nothing from its connection, and so does not see it close. The usual
// remedies cost every request something: a goroutine that reads ahead, or a system call now and then. Here one goroutine
// asks the kernel about all connections together. A connection is told to the kernel once, when its watch begins; from
// then on neither its data nor its requests wake anyone or cost memory, and its end wakes the one goroutine.
//
// Only Linux is asked. Elsewhere there are no watches, and callers do without.
package hangup

import "errors"

// ErrUnsupported is returned by Start where there are no watches, or where the connection is none that can be watched.
var ErrUnsupported = errors.New("the connection cannot be watched")
