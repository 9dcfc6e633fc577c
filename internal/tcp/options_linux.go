package tcp

import (
	"os"
	"syscall"
	"time"
)

// tcpUserTimeout is the socket option TCP_USER_TIMEOUT of tcp(7), in milliseconds. Package syscall
// does not define it.
const tcpUserTimeout = 0x12

// setUserTimeout sets the longest time for which sent data may stay unacknowledged.
func setUserTimeout(fd uintptr, d time.Duration) error {
	return os.NewSyscallError("setsockopt", syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(d.Milliseconds())))
}
