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
	procsLate        = 5 * time.Millisecond   // delay of a sample that shows that no P was free
	procsCalm        = 20                     // samples that must agree before GOMAXPROCS is lowered
	procsFirstCalm   = 5                      // the same for the first time, before any burst is known
	procsMaxUsage    = 0.6                    // usage per P above which GOMAXPROCS is raised
	procsTargetUsage = 0.4                    // usage per P that a lowered GOMAXPROCS may lead to
)

// tuneGOMAXPROCS lowers GOMAXPROCS to what the load needs, until ctx ends. It starts at Go's
// default, which is the CPU limit of the container, and returns to it as soon as fewer are not
// enough: a burst on a large machine waits for one sample, not for one per doubling. GOMAXPROCS in
// the environment disables it, and so does BERTH_WIRE=net/http.
//
// It blocks; its goroutine is the only one that may change GOMAXPROCS.
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
