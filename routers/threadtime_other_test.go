//go:build !linux

package routers

import (
	"testing"
	"time"
)

var startup = time.Now()

// threadTime is the time of the day, for want of a thread's own.
func threadTime(*testing.B) time.Duration { return time.Since(startup) }
