package routers

import (
	"math"
	"time"
)

const (
	// minTarget and targetShare bound the target, see overload.measure: from 100 ms up to this
	// share of Limits.QueueTimeout.
	minTarget   = 100 * time.Millisecond
	targetShare = 10
	// minInterval and maxInterval bound the interval: bursts of 10 s never are an overload.
	minInterval = 10 * time.Second
	maxInterval = time.Minute
	// intervalTargets and intervalSlots are the targets that pass, and the slots that are freed at
	// the measured rate, in an interval at least.
	intervalTargets = 5
	intervalSlots   = 10
	// minPlaces is the least number of requests that may wait during an overload, so that a slot of
	// a small fleet is not idle between two arrivals.
	minPlaces = 2
	// minLeft and leftShare are the evidence of impatience: this many requests, and one in so many.
	minLeft   = 3
	leftShare = 100
)

// overload decides whether the queue is longer than clients are willing to wait. Served in order of
// arrival, such a queue gives every slot to a request about to be given up: no slot is idle, and no
// request completes.
//
//	           all for an interval: the oldest waiter older than the target,
//	           and one in a hundred requests was given up, having waited longer than that
//	healthy ──────────────────────────────────────────────────────────────▶ overloaded
//	    ▲                                                                       │
//	    └───────────────────────────────────────────────────────────────────────┘
//	                         no refusal for an interval
//
// Target and interval are those of CoDel (Nichols and Jacobson, "Controlling Queue Delay", ACM
// Queue 2012), and scale with the observed service time, since requests take milliseconds to
// minutes. Unlike a packet, a request is not late while the client waits patiently: a batch of a
// thousand requests on sixty slots is no overload. So a long queue alone does not suffice; clients
// must give up, in the queue or afterwards. No knowledge of their patience is needed.
//
// While overloaded, a newcomer is refused at once unless the wait would be about the target, and
// requests older than that are behind the others, newest first: the adaptive LIFO of "Fail at
// Scale" (Maurer, ACM Queue 2015). The others are served in order of arrival, since the refusals
// keep their waits short.
//
// There is no clock: callers pass the time. Router.mu guards all fields.
type overload struct {
	target   time.Duration // wait that is short beside the service time; 0: not known yet
	interval time.Duration
	places   int           // requests that may wait during an overload
	maxAge   time.Duration // beyond which a waiter is behind the others during an overload

	above        time.Time // since then, the oldest waiter is older than the target; zero: is not
	halved       time.Time // when served and left were halved last
	served, left int       // requests since above, those of earlier intervals halved

	refused time.Time // last refusal, or the beginning of the overload; zero: healthy
}

// measure sets the target to half the mean service time: by Little's law the number of used slots
// divided by the rate at which slots become free.
func (o *overload) measure(rate float64, used int, queueTimeout time.Duration) {
	seconds := func(s float64) time.Duration {
		return time.Duration(min(s, 1e9) * float64(time.Second)) // s is infinite at a rate of zero
	}
	o.target = max(min(seconds(float64(used)/rate/2), queueTimeout/targetShare), minTarget)
	o.interval = min(max(intervalTargets*o.target, seconds(intervalSlots/rate), minInterval), maxInterval)
	o.places = max(int(math.Ceil(rate*o.target.Seconds())), minPlaces)
	o.maxAge = 2 * seconds(float64(o.places+minPlaces)/rate)
}

// observe takes the age of the oldest waiter into account, 0 for an empty queue. Callers observe
// before a waiter leaves the queue for whatever reason.
func (o *overload) observe(now time.Time, oldest time.Duration) {
	switch {
	case o.target == 0 || oldest <= o.target:
		o.above = time.Time{}
	case o.above.IsZero():
		o.above, o.halved, o.served, o.left = now, now, 0, 0
	case now.Sub(o.halved) >= o.interval:
		o.halved, o.served, o.left = now, o.served/2, o.left/2
	}
}

// onServed counts a waiter that got a slot.
func (o *overload) onServed() { o.served++ }

// onLeft counts a request that was given up after the given wait, by the client or by a timeout.
// The result is whether the overload begins.
func (o *overload) onLeft(now time.Time, waited time.Duration) (begins bool) {
	if o.above.IsZero() || waited <= o.target {
		return false
	}
	o.left++
	if o.active() || now.Sub(o.above) < o.interval || o.left < minLeft || o.left*leftShare < o.served+o.left {
		return false
	}
	o.refused = now
	return true
}

// refuse reports whether a newcomer is refused, with ahead waiters to be served before.
func (o *overload) refuse(now time.Time, ahead int) bool {
	if !o.active() || ahead < o.places {
		return false
	}
	o.refused = now
	return true
}

// endIfCalm ends the overload if no request was refused for an interval, and reports that.
func (o *overload) endIfCalm(now time.Time) (ends bool) {
	if !o.active() || now.Sub(o.refused) < o.interval {
		return false
	}
	o.refused, o.above = time.Time{}, time.Time{}
	return true
}

// active reports whether the state is overloaded.
func (o *overload) active() bool { return !o.refused.IsZero() }

// Overloaded reports whether requests are refused because the queue was longer than clients wait.
func (r *Router) Overloaded() bool {
	defer r.reportOverload() // after the unlock
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observeQueue(r.now())
	return r.overload.active()
}

// observeQueue passes the time and the state of the queue to the drain rate and to overload. mu is
// held. Call it before and after changes of the queue.
func (r *Router) observeQueue(now time.Time) {
	if r.rate.observe(now, r.queue.head != nil, r.freedSlots.Load()) {
		r.measureService()
	}
	oldest := time.Duration(0)
	if w := r.queue.head; w != nil {
		oldest = now.Sub(w.since)
	}
	r.overload.observe(now, oldest)
	if r.overload.endIfCalm(now) {
		r.queue.orderByAge(false)
	}
	r.queue.ageOut(now.Add(-r.overload.maxAge))
}

// measureService updates the target after a change of the drain rate. mu is held.
func (r *Router) measureService() {
	g, used := r.current.Load(), 0
	for _, m := range g.members {
		used += m.Usage().Ongoing()
	}
	if rate, known := r.rate.perSecond(); known && used > 0 {
		r.overload.measure(rate, used, g.limits.QueueTimeout)
	}
}

// leaveQueue withdraws w after a disconnect or a timeout, and reports whether w was still waiting.
func (r *Router) leaveQueue(w *waiter) bool {
	defer r.reportOverload() // after the unlock
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	r.observeQueue(now)
	if !r.queue.withdraw(w) {
		return false
	}
	r.leftAfter(now, now.Sub(w.since))
	return true
}

// onAbandoned counts a request that was given up after the wait in the queue, before the end of the
// response. Waiters alone would be too little evidence: a queue in order of arrival hardly loses
// any, since slots given to requests about to be given up are free again soon.
func (r *Router) onAbandoned(waited time.Duration) {
	if waited == 0 {
		return
	}
	defer r.reportOverload()
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	r.observeQueue(now)
	r.leftAfter(now, waited)
}

// leftAfter starts the overload if the request that left after this wait is the last evidence. mu
// is held.
func (r *Router) leftAfter(now time.Time, waited time.Duration) {
	if r.current.Load().limits.MaxQueued >= 0 && r.overload.onLeft(now, waited) {
		r.queue.orderByAge(true)
		r.queue.ageOut(now.Add(-r.overload.maxAge))
	}
}

// reportOverload calls the hook if the state has changed since the last report. mu is not held.
func (r *Router) reportOverload() {
	if r.hooks.Overload == nil {
		return
	}
	if on := r.queue.byAge.Load(); r.reported.Load() != on && r.reported.CompareAndSwap(!on, on) {
		r.hooks.Overload(on)
	}
}

// refusal returns the error for a newcomer that found no slot, nil if it may wait. mu is held, and
// the newcomer is the last in the queue.
func (r *Router) refusal(now, deadline time.Time, limits Limits) error {
	if limits.MaxQueued < 0 {
		return r.missesDeadline(now, deadline)
	}
	if r.overload.refuse(now, r.queue.inTime()-1) {
		return ErrOverloaded
	}
	if r.QueueLength() > limits.MaxQueued {
		oldest := r.queue.head
		if !oldest.late {
			return ErrQueueFull
		}
		r.queue.finishWait(oldest, handover{err: ErrOverloaded}) // rather than a request that will be served soon
	}
	return r.missesDeadline(now, deadline)
}

// missesDeadline returns ErrDeadline if the slots freed until the deadline, at the measured rate,
// go to requests ahead of a newcomer.
func (r *Router) missesDeadline(now, deadline time.Time) error {
	rate, known := r.rate.perSecond()
	if !known || deadline.IsZero() || float64(r.queue.inTime()) <= rate*deadline.Sub(now).Seconds() {
		return nil
	}
	return ErrDeadline
}
