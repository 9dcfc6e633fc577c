//go:build race

package tcp

import "syscall"

// The race detector knows what these read and write, and that it orders memory.

func Read(fd uintptr, p []byte) (int, syscall.Errno)  { return call(syscall.Read, fd, p) }
func Write(fd uintptr, p []byte) (int, syscall.Errno) { return call(syscall.Write, fd, p) }

func call(do func(int, []byte) (int, error), fd uintptr, p []byte) (int, syscall.Errno) {
	for {
		n, err := do(int(fd), p)
		if err == nil {
			return n, 0
		}
		if err != syscall.EINTR {
			return 0, err.(syscall.Errno)
		}
	}
}
