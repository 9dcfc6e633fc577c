package http1

import "syscall"

// quiet reports whether a read of the socket would wait. 386 has no system call of its own for this,
// but package syscall reaches the one that it has.
func quiet(fd uintptr) bool {
	_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	return err == syscall.EAGAIN
}
