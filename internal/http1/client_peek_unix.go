//go:build unix && !aix && (!linux || 386)

package http1

import "syscall"

// canPeek reports whether recvWouldBlock inspects the socket on this platform.
const canPeek = true

// recvWouldBlock reports whether a read of the socket would block.
func recvWouldBlock(fd uintptr) bool {
	var one [1]byte
	_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return err == syscall.EAGAIN
}
