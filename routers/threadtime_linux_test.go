package routers

import (
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// threadTime returns the processor time of this thread.
func threadTime(b *testing.B) time.Duration {
	const clockThreadCPU = 3 // CLOCK_THREAD_CPUTIME_ID
	var t syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockThreadCPU, uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		b.Fatal(errno)
	}
	return time.Duration(t.Nano())
}
