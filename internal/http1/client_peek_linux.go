//go:build !386

package http1

import (
	"syscall"
	"unsafe"
)

// canPeek reports whether recvWouldBlock inspects the socket on this platform.
const canPeek = true

// recvWouldBlock reports whether a read of the socket would block. The raw system call does not
// notify the scheduler, see package tcp.
func recvWouldBlock(fd uintptr) bool {
	var one [1]byte
	_, _, err := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&one)), uintptr(len(one)),
		syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
	return err == syscall.EAGAIN
}
