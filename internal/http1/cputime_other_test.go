//go:build !unix

package http1

import "time"

// cpuTime returns 0: CPU time is not measured on this platform.
func cpuTime() time.Duration { return 0 }
