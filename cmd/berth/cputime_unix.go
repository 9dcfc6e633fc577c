//go:build unix

package main

import (
	"syscall"
	"time"
)

// cpuTime returns the CPU time used by the process so far, and true.
func cpuTime() (used time.Duration, known bool) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic("BUG: getrusage of the process itself: " + err.Error())
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), true
}
