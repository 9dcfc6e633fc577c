package http1

import (
	"syscall"

	"berth/internal/tcp"
)

// short is what may be read without telling Go's scheduler; to copy more takes time.
const short = 64 << 10

// readFD reads once. At the end there is neither a byte nor an error.
func readFD(fd uintptr, p []byte) (int, error) {
	if len(p) <= short {
		n, err := tcp.Read(fd, p)
		return n, errnoError(err)
	}
	for {
		if n, err := syscall.Read(int(fd), p); err != syscall.EINTR {
			return n, err
		}
	}
}

// writeFD writes once, as much as there is room for.
func writeFD(fd uintptr, p []byte) (int, error) {
	n, err := tcp.Write(fd, p[:min(len(p), short)])
	return n, errnoError(err)
}

func errnoError(err syscall.Errno) error {
	if err == 0 {
		return nil
	}
	return err
}
