//go:build !linux

package routers

import (
	"testing"
	"time"
)

var startup = time.Now()

// threadTime returns wall time, where that of a thread is not available.
func threadTime(*testing.B) time.Duration { return time.Since(startup) }
