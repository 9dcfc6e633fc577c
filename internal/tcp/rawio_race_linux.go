//go:build race

package tcp

import "syscall"

// Under the race detector these are calls of package syscall, which are instrumented: the detector
// sees the memory they access and the order they impose.

// Read reads once from a non-blocking socket, as in builds without the race detector.
func Read(fd uintptr, p []byte) (int, syscall.Errno) { return retryEINTR(syscall.Read, fd, p) }

// Write writes once to a non-blocking socket, as in builds without the race detector.
func Write(fd uintptr, p []byte) (int, syscall.Errno) { return retryEINTR(syscall.Write, fd, p) }

func retryEINTR(call func(int, []byte) (int, error), fd uintptr, p []byte) (int, syscall.Errno) {
	for {
		n, err := call(int(fd), p)
		if err == nil {
			return n, 0
		}
		if err != syscall.EINTR {
			return 0, err.(syscall.Errno)
		}
	}
}
