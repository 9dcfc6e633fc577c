//go:build !race

package tcp

import (
	"syscall"
	"unsafe"
)

// Read reads once from a non-blocking socket. p must not be empty and should be at most MaxRaw
// bytes long, since the Go scheduler is not notified of the call. The error is syscall.EAGAIN if no
// data has arrived. At the end of the stream Read returns 0 bytes and no error.
func Read(fd uintptr, p []byte) (int, syscall.Errno) { return rawCall(syscall.SYS_READ, fd, p) }

// Write writes once to a non-blocking socket: as many bytes of p as fit the send buffer. p must not
// be empty and should be at most MaxRaw bytes long. The error is syscall.EAGAIN if the send buffer
// is full.
func Write(fd uintptr, p []byte) (int, syscall.Errno) { return rawCall(syscall.SYS_WRITE, fd, p) }

// rawCall makes a read or write system call, again after EINTR, without notifying the Go scheduler.
// The call must not block: a blocked one would hold up the garbage collector.
func rawCall(trap, fd uintptr, p []byte) (int, syscall.Errno) {
	for {
		n, _, err := syscall.RawSyscall(trap, fd, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
		if err == 0 {
			return int(n), 0
		}
		if err != syscall.EINTR {
			return 0, err
		}
	}
}
