package tcp

import (
	"os"
	"syscall"
	"time"
)

// tcpUserTimeout is TCP_USER_TIMEOUT of tcp(7), in milliseconds, which package syscall does not name.
const tcpUserTimeout = 0x12

func setUserTimeout(fd uintptr, d time.Duration) error {
	return os.NewSyscallError("setsockopt", syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(d.Milliseconds())))
}
