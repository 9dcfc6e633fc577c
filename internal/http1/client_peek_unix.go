//go:build unix && !aix && (!linux || 386)

package http1

import "syscall"

// canPeek: a connection can be looked at here.
const canPeek = true

// recvWouldBlock reports whether a read of the socket would wait.
func recvWouldBlock(fd uintptr) bool {
	var one [1]byte
	_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return err == syscall.EAGAIN
}
