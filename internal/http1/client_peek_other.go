//go:build !unix || aix

package http1

// canPeek reports whether recvWouldBlock inspects the socket on this platform. Here it does not, so
// no connection is reused.
const canPeek = false

// recvWouldBlock returns true. What it misses shows at the next write or read.
func recvWouldBlock(uintptr) bool { return true }
