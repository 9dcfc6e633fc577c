//go:build !386

package http1

import (
	"syscall"
	"unsafe"
)

// canPeek: a connection can be looked at here.
const canPeek = true

// recvWouldBlock tells whether a read of the socket would wait. The scheduler is not told of so short a call, see package socket.
func recvWouldBlock(fd uintptr) bool {
	var one [1]byte
	_, _, err := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&one)), uintptr(len(one)),
		syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
	return err == syscall.EAGAIN
}
