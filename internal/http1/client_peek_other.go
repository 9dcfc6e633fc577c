//go:build !unix || aix

package http1

// canPeek reports whether recvWouldBlock inspects the socket on this platform. Without inspection
// no connection is reused.
const canPeek = false

// recvWouldBlock returns true. A closed connection is noticed at the next write or read.
func recvWouldBlock(uintptr) bool { return true }
