package routers

import (
	"math"
	"time"
)

const (
	// rateWindow is the time constant of the average.
	rateWindow = 10 * time.Second
	// rateStep is the least time over which a rate is taken.
	rateStep = time.Second
)

// drainRate is how many slots come free per second while requests wait: an
// exponentially weighted average over intervals in which there was always
// somebody in line. Times without anybody say nothing and are left out. It has
// no clock of its own and is guarded by the router's mutex.
type drainRate struct {
	since  time.Time // when the interval under way began; zero while nobody waits
	freed  uint64    // the count at that time
	rate   float64   // per second
	weight float64   // how much of the average is known, 0 to 1
}

// look brings the average up to now, when freed slots have been given back in all.
// waiting tells whether somebody is in line from now on. It is to be called when the line
// fills and when it empties, and in between as often as one likes.
func (d *drainRate) look(now time.Time, waiting bool, freed uint64) {
	took := now.Sub(d.since)
	whole := !d.since.IsZero() && took >= rateStep
	if whole {
		keep := math.Exp(-took.Seconds() / rateWindow.Seconds())
		d.rate = keep*d.rate + (1-keep)*float64(freed-d.freed)/took.Seconds()
		d.weight = keep*d.weight + (1 - keep)
	}
	switch {
	case !waiting:
		d.since = time.Time{}
	case whole || d.since.IsZero():
		d.since, d.freed = now, freed
	}
}

// perSecond is the average; false while too little is known of it.
func (d *drainRate) perSecond() (float64, bool) {
	if d.weight < 0.1 {
		return 0, false
	}
	return d.rate / d.weight, true
}

// RetryAfter is when a client that was turned away may try again: the time in
// which those in line are served at the rate measured, between 1 and 60 s. Zero
// if the rate is not known yet.
func (r *Router) RetryAfter() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lookAtRate()
	rate, known := r.rate.perSecond()
	if !known {
		return 0
	}
	seconds := float64(r.line.length+1) / rate // by a rate of zero: for ever
	return time.Duration(min(max(seconds, 1), 60) * float64(time.Second))
}

// lookAtRate is to be called when the line has become longer or shorter. The mutex is held.
func (r *Router) lookAtRate() {
	r.rate.look(time.Now(), r.line.length > 0, r.freedSlots.Load())
}
