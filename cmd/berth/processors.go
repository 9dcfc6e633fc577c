package main

import (
	"context"
	"math"
	"os"
	"runtime"
	"time"

	"berth/ingress"
)

// How the number of processors, Go's Ps, follows the load. One that has nothing to do looks for work, is put to sleep and
// is woken again, and where events come one by one that is a fifth of what each of them costs.
const (
	processorsEvery = 100 * time.Millisecond // the time between two looks at the load
	processorsLate  = 5 * time.Millisecond   // by which a look comes too late if nothing was free to run it
	processorsCalm  = 20                     // looks that must agree before there are fewer
	processorsFirst = 5                      // the same for the first time, when nothing is known of bursts
	processorsBusy  = 0.6                    // the share of their time beyond which there must be more
	processorsAim   = 0.4                    // the share that fewer may be left with
)

// paceProcessors has the scheduler use as few processors as the load needs until ctx ends. It begins
// with Go's own choice, which is the CPU limit of the container, and goes back to it as soon as fewer
// are not enough, however many that are: a burst on a large machine is to wait for one look, not for
// one per doubling. GOMAXPROCS in the environment overrides it, and so does BERTH_WIRE=net/http.
func paceProcessors(ctx context.Context) {
	spent, known := cpuTime()
	if !known || os.Getenv("GOMAXPROCS") != "" || ingress.PlainWire() {
		return
	}
	defer runtime.SetDefaultGOMAXPROCS()
	look := time.NewTicker(processorsEvery)
	defer look.Stop()
	d := demand{looks: processorsCalm - processorsFirst}
	lowered := false
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		total, _ := cpuTime()
		now, n := time.Now(), runtime.GOMAXPROCS(0)
		took := now.Sub(last)
		switch want := d.next(n, float64(total-spent)/float64(took), took-processorsEvery > processorsLate); {
		case want < n:
			runtime.GOMAXPROCS(want) // stops the world for some microseconds
			lowered = true
		case want > n && lowered:
			runtime.SetDefaultGOMAXPROCS()
			lowered = false
		}
		last, spent = now, total
	}
}

// demand is what was seen of the load since the number of processors was last thought over.
type demand struct {
	looks int
	peak  float64
}

// next returns how many processors n of them should become after a look that found so many of them
// used, or that was late: all at once where n are not enough, fewer only after a time in which those
// would have been enough.
func (d *demand) next(n int, used float64, late bool) int {
	if late || used > processorsBusy*float64(n) {
		*d = demand{}
		return math.MaxInt
	}
	d.peak = max(d.peak, used)
	if d.looks++; d.looks < processorsCalm {
		return n
	}
	enough := max(1, int(math.Ceil(d.peak/processorsAim)))
	*d = demand{}
	return min(n, enough)
}
