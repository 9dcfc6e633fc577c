//go:build !unix

package main

import "time"

// cpuTime returns false: the CPU time of the process is not available here.
func cpuTime() (used time.Duration, known bool) { return 0, false }
