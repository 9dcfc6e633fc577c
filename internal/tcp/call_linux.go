//go:build !race

package tcp

import (
	"syscall"
	"unsafe"
)

// Read reads once from a socket that does not block, into p, which is not empty; it should be short. The error is
// syscall.EAGAIN if nothing has come; at the end no byte is read, and there is none.
func Read(fd uintptr, p []byte) (int, syscall.Errno) { return call(syscall.SYS_READ, fd, p) }

// Write writes once to a socket that does not block: as much of p, which is not empty and should be short, as there is
// room for, and syscall.EAGAIN if there is none.
func Write(fd uintptr, p []byte) (int, syscall.Errno) { return call(syscall.SYS_WRITE, fd, p) }

func call(trap, fd uintptr, p []byte) (int, syscall.Errno) {
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
