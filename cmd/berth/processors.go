package main

import (
	"context"
	"math"
	"os"
	"runtime"
	"syscall"
	"time"
)

// How the number of processors, Go's Ps, follows the load. One that has nothing to do looks for work, is put to sleep and
// is woken again, and where events come one by one that is a fifth of what each of them costs.
const (
	processorsEvery = 100 * time.Millisecond // the time between two looks at the load
	processorsLate  = 5 * time.Millisecond   // by which a look comes too late if nothing was free to run it
	processorsCalm  = 20                     // looks that must agree before there are fewer
	processorsBusy  = 0.6                    // the share of their time beyond which there must be more
	processorsAim   = 0.4                    // the share that fewer may be left with
)

// paceProcessors has the scheduler use as few processors as the load needs, and never more than Go's own choice, which is
// the CPU limit of the container, until ctx ends. GOMAXPROCS in the environment overrides it.
func paceProcessors(ctx context.Context) {
	if os.Getenv("GOMAXPROCS") != "" {
		return
	}
	defer runtime.SetDefaultGOMAXPROCS()
	look := time.NewTicker(processorsEvery)
	defer look.Stop()
	var d demand
	most := runtime.GOMAXPROCS(1)
	for last, spent := time.Now(), cpuTime(); ; {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		now, total, n := time.Now(), cpuTime(), runtime.GOMAXPROCS(0)
		took := now.Sub(last)
		most = max(most, n)
		switch want := d.next(n, float64(total-spent)/float64(took), took-processorsEvery > processorsLate); {
		case want < n:
			runtime.GOMAXPROCS(want) // stops the world for some microseconds
		case want > n && n < most:
			runtime.SetDefaultGOMAXPROCS()
			if most = runtime.GOMAXPROCS(0); want < most {
				runtime.GOMAXPROCS(want)
			}
		}
		last, spent = now, total
	}
}

// cpuTime is what the process has had of all CPUs so far.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic("BUG: getrusage of the process itself: " + err.Error())
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// demand is what was seen of the load since the number of processors was last thought over.
type demand struct {
	looks int
	peak  float64
}

// next is how many processors n of them should become after a look that found so many of them used, or that was late. More
// come at once, so that a burst waits for one look; fewer only after a time in which that would have been enough.
func (d *demand) next(n int, used float64, late bool) int {
	if late || used > processorsBusy*float64(n) {
		*d = demand{}
		return 2 * n
	}
	d.peak = max(d.peak, used)
	if d.looks++; d.looks < processorsCalm {
		return n
	}
	enough := max(1, int(math.Ceil(d.peak/processorsAim)))
	*d = demand{}
	return min(n, enough)
}
