package main

import (
	"context"
	"math"
	"os"
	"runtime"
	"time"

	"berth/ingress"
)

// Limits of the adaptation of GOMAXPROCS to the load. An idle P looks for work, is parked and is
// woken again, which is a large part of the cost of an isolated event.
const (
	procsInterval    = 100 * time.Millisecond // between two samples of the load
	procsLate        = 5 * time.Millisecond   // delay of a sample for lack of a free P
	procsCalm        = 20                     // consecutive samples needed to lower GOMAXPROCS
	procsFirstCalm   = 5                      // the same for the first time, before any burst is known
	procsMaxUsage    = 0.6                    // usage per P above which GOMAXPROCS is raised
	procsTargetUsage = 0.4                    // highest usage per P after lowering GOMAXPROCS
)

// tuneGOMAXPROCS adapts GOMAXPROCS to the load until ctx ends: between 1 and Go's default, the CPU
// limit of the container. When the current number is not enough, tuneGOMAXPROCS restores the
// default at once: a burst on a large machine waits for one sample, not for one per doubling.
// GOMAXPROCS in the environment and BERTH_WIRE=net/http disable the tuning.
//
// tuneGOMAXPROCS blocks. No other goroutine may change GOMAXPROCS.
func tuneGOMAXPROCS(ctx context.Context) {
	spent, known := cpuTime()
	if !known || os.Getenv("GOMAXPROCS") != "" || ingress.PlainWire() {
		return
	}
	defer runtime.SetDefaultGOMAXPROCS()
	ticker := time.NewTicker(procsInterval)
	defer ticker.Stop()
	d := demand{samples: procsCalm - procsFirstCalm}
	lowered := false
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		total, _ := cpuTime()
		now, n := time.Now(), runtime.GOMAXPROCS(0)
		took := now.Sub(last)
		switch want := d.addSample(n, float64(total-spent)/float64(took), took-procsInterval > procsLate); {
		case want < n:
			runtime.GOMAXPROCS(want) // stops the world
			lowered = true
		case want > n && lowered:
			runtime.SetDefaultGOMAXPROCS()
			lowered = false
		}
		last, spent = now, total
	}
}

// demand holds the samples since GOMAXPROCS was last decided on.
type demand struct {
	samples int
	peak    float64 // highest usage, in CPUs
}

// addSample adds a sample of the CPUs in use, late or not, and returns the wanted GOMAXPROCS, which
// is n now: math.MaxInt at once if n are too few, fewer than n only after procsCalm samples for
// which fewer were enough.
func (d *demand) addSample(n int, used float64, late bool) int {
	if late || used > procsMaxUsage*float64(n) {
		*d = demand{}
		return math.MaxInt
	}
	d.peak = max(d.peak, used)
	if d.samples++; d.samples < procsCalm {
		return n
	}
	enough := max(1, int(math.Ceil(d.peak/procsTargetUsage)))
	*d = demand{}
	return min(n, enough)
}
