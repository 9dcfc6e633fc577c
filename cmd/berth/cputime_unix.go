//go:build unix

package main

import (
	"syscall"
	"time"
)

// cpuTime returns the CPU time that the process has used so far, and true.
func cpuTime() (used time.Duration, known bool) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic("BUG: getrusage of the process itself: " + err.Error())
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), true
}
