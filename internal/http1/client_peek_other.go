//go:build !unix || aix

package http1

// canPeek: a connection cannot be looked at here, so none is used twice.
const canPeek = false

// recvWouldBlock assumes so: what it could have told comes out at the next write or read.
func recvWouldBlock(uintptr) bool { return true }
