package llmserver

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// health is what is known of whether a replica can serve. Two things tell:
// requests that could not connect, and probes. Only a probe brings it back.
type health struct {
	down     atomic.Pointer[string] // why it cannot serve; nil while it can
	heard    atomic.Int64           // when it last answered a request, Unix nanoseconds
	wake     chan struct{}          // asks for a probe now
	mu       sync.Mutex
	observer func() // called after each change, from the goroutine that saw it; may be nil
}

const (
	// missesAllowed is how many probes in a row may time out before a
	// replica is set aside: an engine that is busy answers its health late,
	// so lateness alone is soft evidence.
	missesAllowed = 3
	// firstRetry is how soon a replica that is down is probed again; the
	// time doubles up to the usual period.
	firstRetry = 500 * time.Millisecond
)

// Available tells whether the replica can be expected to serve something new.
func (r *Replica) Available() bool {
	return r.health.down.Load() == nil && r.gate.read().phase == serving
}

// Draining tells whether the replica takes nothing new for good: it drains or has left the set.
func (r *Replica) Draining() bool { return r.gate.read().phase != serving }

// Said is why the replica is not available: the last thing that it, or the
// attempt to reach it, said. Empty while it is available.
func (r *Replica) Said() string {
	if s := r.health.down.Load(); s != nil {
		return *s
	}
	if err := r.gate.read().closed(); err != nil {
		return err.Error()
	}
	return ""
}

// Observe has f called after each change of Available, in place of what was set before.
func (r *Replica) Observe(f func()) {
	r.health.mu.Lock()
	defer r.health.mu.Unlock()
	r.health.observer = f
}

// set records why the replica cannot serve, or that it can, and tells the
// observer when that is news.
func (h *health) set(err error) {
	var why *string
	if err != nil {
		s := err.Error()
		why = &s
	}
	old := h.down.Swap(why)
	if (old == nil) != (why == nil) {
		h.tell()
	}
}

// Freed tells the observer that a slot came free which nobody waits for where
// it was held: the replica may serve another model by now.
func (r *Replica) Freed() { r.health.tell() }

func (h *health) tell() {
	h.mu.Lock()
	observer := h.observer
	h.mu.Unlock()
	if observer != nil {
		observer()
	}
}

// request hears of a request that failed.
func (h *health) request(err error) {
	if errors.Is(err, ErrNoConnection) || errors.Is(err, ErrDraining) {
		h.setAside(err)
	}
}

// reservation hears of a reservation that was not granted. Where there was no
// clear answer, the replica is set aside like one that does not answer.
func (h *health) reservation(err error) {
	if !Refused(err) {
		h.setAside(err)
		return
	}
	h.request(err)
}

// setAside has the replica not chosen until a probe has reached it, and it probed now.
func (h *health) setAside(err error) {
	h.set(err)
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// answered hears of a request that was answered.
func (h *health) answered() { h.heard.Store(time.Now().UnixNano()) }

// keepProbing probes the replica until ctx ends: at its period, soon and with growing
// gaps while it is down, and at once when a request could not connect. The first
// probe comes at once.
func (r *Replica) keepProbing(ctx context.Context) {
	misses, retry := 0, firstRetry
	for {
		err := r.probe(ctx)
		if ctx.Err() != nil {
			return
		}
		period := r.Endpoint().ProbeEvery
		switch {
		case err == nil:
			misses, retry = 0, firstRetry
			r.health.set(nil)
		case errors.Is(err, context.DeadlineExceeded) && r.busy(period):
			misses = 0
		case errors.Is(err, context.DeadlineExceeded) && misses+1 < missesAllowed:
			misses++
		default:
			r.health.set(err)
			period = min(retry, period)
			retry = 2 * period
		}
		if !r.pause(ctx, period) {
			return
		}
	}
}

// probe asks once.
func (r *Replica) probe(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, r.Endpoint().ProbeTimeout)
	defer stop()
	report, err := r.backend.Probe(ctx)
	r.learn(report)
	if err == nil && report.Draining {
		err = ErrDraining
	}
	return err
}

// busy tells whether the replica answered a request not long ago.
func (r *Replica) busy(within time.Duration) bool {
	return time.Since(time.Unix(0, r.health.heard.Load())) < 2*within
}

// pause waits about d, less when a probe is asked for; false when ctx ended.
func (r *Replica) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d - time.Duration(rand.Int64N(int64(d)/5+1)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.health.wake:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
