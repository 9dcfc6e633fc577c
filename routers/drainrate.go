package routers

import (
	"math"
	"time"
)

const (
	// rateWindow and maxRateWindow bound the time constant of the average, which is the time in
	// which windowSlots are released.
	rateWindow    = 10 * time.Second
	maxRateWindow = time.Minute
	windowSlots   = 8
	// rateStep is the shortest interval over which a rate is taken.
	rateStep = time.Second
)

// drainRate is the number of slots released per second while requests wait: an exponentially
// weighted average over intervals during which the queue was never empty. Times with an empty queue
// are no evidence of capacity and are left out. There is no clock: callers pass the time. Router.mu
// guards all fields.
type drainRate struct {
	since  time.Time // start of the current interval; zero while the queue is empty
	freed  uint64    // released slots at that time
	rate   float64   // per second, weighted
	weight float64   // of the intervals seen so far, 0 to 1
}

// observe updates the average. freed is the total of released slots, and waiting reports whether
// the queue is not empty from now on. The router must call observe when the queue fills and when
// the queue empties, and may call observe at any time in between. observe reports whether the
// average has changed.
func (d *drainRate) observe(now time.Time, waiting bool, freed uint64) (changed bool) {
	took := now.Sub(d.since)
	complete := !d.since.IsZero() && took >= rateStep
	if complete {
		window := rateWindow.Seconds()
		if rate, known := d.perSecond(); known {
			window = min(max(windowSlots/rate, window), maxRateWindow.Seconds())
		}
		keep := math.Exp(-took.Seconds() / window)
		d.rate = keep*d.rate + (1-keep)*float64(freed-d.freed)/took.Seconds()
		d.weight = keep*d.weight + (1 - keep)
	}
	switch {
	case !waiting:
		d.since = time.Time{}
	case complete || d.since.IsZero():
		d.since, d.freed = now, freed
	}
	return complete
}

// perSecond returns the average, and false while too little has been observed.
func (d *drainRate) perSecond() (float64, bool) {
	if d.weight < 0.1 {
		return 0, false
	}
	return d.rate / d.weight, true
}

// RetryAfter returns the delay after which a rejected client may try again: the time in which the
// queue drains at the measured rate, between 1 and 60 s, or 0 if the rate is not known yet.
func (r *Router) RetryAfter() time.Duration {
	defer r.reportOverload() // after the unlock
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observeQueue(r.now())
	rate, known := r.rate.perSecond()
	if !known {
		return 0
	}
	seconds := float64(r.QueueLength()+1) / rate // infinite at a rate of zero
	return time.Duration(min(max(seconds, 1), 60) * float64(time.Second))
}
