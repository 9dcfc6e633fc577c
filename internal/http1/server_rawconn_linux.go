package http1

import (
	"syscall"

	"berth/internal/tcp"
)

// readFD reads once. At the end of the connection it returns neither a byte nor an error.
func readFD(fd uintptr, p []byte) (int, error) {
	if len(p) <= tcp.MaxRaw {
		n, err := tcp.Read(fd, p)
		return n, errnoError(err)
	}
	for {
		if n, err := syscall.Read(int(fd), p); err != syscall.EINTR {
			return n, err
		}
	}
}

// writeFD writes once, as much of p as there is room for.
func writeFD(fd uintptr, p []byte) (int, error) {
	n, err := tcp.Write(fd, p[:min(len(p), tcp.MaxRaw)])
	return n, errnoError(err)
}

func errnoError(err syscall.Errno) error {
	if err == 0 {
		return nil
	}
	return err
}
