package llmserver

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// health is what is known of whether a replica can be reached. Two things tell: requests and probes.
//
//	     a request: no connection, draining, no clear answer
//	     probes: draining, late while nothing else came either, or anything else three times in a row
//	up ─────────────────────────────────────────────────────────▶ down
//	 ▲                                                             │
//	 └─────────────────────────────────────────────────────────────┘
//	     a good probe
//
// A late probe does not count if some byte of a response came meanwhile: a busy engine answers its health
// last. After a failed probe the next one comes soon, with growing gaps up to the usual period.
// Whether what is reached works is the circuit's business. A replica that is down keeps its place in
// the set, and so on the hash ring.
type health struct {
	downReason   atomic.Pointer[string] // why it cannot serve; nil while it can
	lastResponse atomic.Int64           // when the body of a good response last began, by monotonic time
	lastSilence  atomic.Int64           // when its silence last counted as a failure, likewise
	bodyReads    atomic.Uint64          // reads that have brought some of a body so far
	probeNow     chan struct{}          // asks for a probe now
	mu           sync.Mutex
	observer     func() // called after each change, from the goroutine that saw it; may be nil
}

const (
	// missesAllowed is how many probes in a row may fail before they alone
	// set a replica aside. It is Ray Serve's number.
	maxProbeFailures = 3
	// firstRetry is how soon a probe that failed is repeated; the
	// time doubles up to the usual period.
	firstProbeRetry = 500 * time.Millisecond
)

// Available tells whether the replica can be expected to serve something new.
func (r *Replica) Available() bool {
	return r.Up() && r.circuit.admits()
}

// Up tells whether the replica can be reached and serves: it is neither down nor draining. It may be
// ejected.
func (r *Replica) Up() bool {
	return r.health.downReason.Load() == nil && r.gate.counts().phase == serving
}

// Ejected reports whether the replica's circuit is open, and since when, by a monotonic clock.
func (r *Replica) Ejected() (since time.Duration, open bool) {
	return time.Duration(r.circuit.openedAt.Load()), r.circuit.state().isOpen()
}

// AllowEjected has the replica chosen though its circuit is open, or not any more. Whoever knows the other
// replicas decides.
func (r *Replica) AllowEjected(spared bool) { r.circuit.setBypass(spared) }

// Ejections is how often the circuit was opened so far.
func (r *Replica) Ejections() uint64 { return r.circuit.totalEjections.Load() }

// State says in one word how the replica stands.
func (r *Replica) State() string {
	s := r.circuit.state()
	switch {
	case r.Draining():
		return "draining"
	case !r.Up():
		return "down"
	case !s.isOpen():
		return "serving"
	case s.halfOpen || s.expired():
		return "half_open"
	default:
		return "ejected"
	}
}

// States are all that State says.
var States = []string{"serving", "half_open", "ejected", "down", "draining"}

// Draining tells whether the replica takes nothing new for good: it drains or has left the set.
func (r *Replica) Draining() bool { return r.gate.counts().phase != serving }

// DownReason is why the replica is not available: the last thing that it, or the
// attempt to reach it, said. Empty while it is available.
func (r *Replica) DownReason() string {
	if s := r.health.downReason.Load(); s != nil {
		return *s
	}
	if err := r.gate.counts().admissionError(); err != nil {
		return err.Error()
	}
	if s := r.circuit.lastFailure.Load(); s != nil && !r.circuit.admits() {
		return "ejected, " + *s
	}
	return ""
}

// OnChange has f called after each change of Available, in place of what was set before.
func (r *Replica) OnChange(f func()) {
	r.health.mu.Lock()
	defer r.health.mu.Unlock()
	r.health.observer = f
}

// set records why the replica cannot serve, or that it can, and tells the
// observer when that is news.
func (r *Replica) setHealth(err error) (news bool) {
	var why *string
	if err != nil {
		s := err.Error()
		why = &s
	}
	old := r.health.downReason.Swap(why)
	if news = (old == nil) != (why == nil); news {
		if err == nil {
			r.markRecovered()
		}
		r.health.notify()
	}
	return news
}

// NotifyFreed tells the observer that a slot came free which nobody waits for where
// it was held: the replica may serve another model by now.
func (r *Replica) NotifyFreed() { r.health.notify() }

func (h *health) notify() {
	h.mu.Lock()
	observer := h.observer
	h.mu.Unlock()
	if observer != nil {
		observer()
	}
}

// setAside has the replica not chosen until a probe has reached it, and it probed now. It tells
// whether that is news.
func (r *Replica) markDown(err error) (news bool) {
	news = r.setHealth(err)
	select {
	case r.health.probeNow <- struct{}{}:
	default:
	}
	return news
}

// keepProbing probes the replica until ctx ends: at its period, soon and with growing
// gaps after a failure, and at once when a request could not connect. The first
// probe comes at once.
func (r *Replica) probeLoop(ctx context.Context) {
	misses, retry := 0, firstProbeRetry
	for {
		received := r.health.bodyReads.Load()
		err := r.probeOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		period, late := r.Endpoint().ProbeEvery, errors.Is(err, errProbeTimeout)
		switch {
		case err == nil:
			misses, retry = 0, firstProbeRetry
			r.setHealth(nil)
		case errors.Is(err, ErrExhausted): // nothing was asked
			r.reportExhausted(err)
			period = min(firstProbeRetry, period)
		case late && r.health.bodyReads.Load() != received:
			misses = 0
		default:
			if misses++; misses >= maxProbeFailures || late || errors.Is(err, ErrDraining) || !r.Up() {
				r.setHealth(err)
			}
			period = min(retry, period)
			retry = 2 * period
		}
		if !r.waitForProbe(ctx, period) {
			return
		}
	}
}

// errProbeLate is what clients read of a replica that is down for it.
var errProbeTimeout = errors.New("its health check was not answered in time")

// probe asks once.
func (r *Replica) probeOnce(ctx context.Context) error {
	ctx, stop := context.WithTimeoutCause(ctx, r.Endpoint().ProbeTimeout, errProbeTimeout)
	defer stop()
	report, err := r.backend.Probe(ctx)
	r.applyReport(report)
	switch {
	case err == nil && report.Draining:
		return ErrDraining
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// pause waits about d, less when a probe is asked for; false when ctx ended.
func (r *Replica) waitForProbe(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d - time.Duration(rand.Int64N(int64(d)/5+1)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.health.probeNow:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
