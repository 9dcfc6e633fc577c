package llmserver

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// A replica's health is its reachability. Requests and probes decide:
//
//	     a request: no connection, draining, outcome of a reservation unknown
//	     probes: draining, a timeout while no body was read either, or 3 other failures in a row
//	up ─────────────────────────────────────────────────────────▶ down
//	 ▲                                                             │
//	 └─────────────────────────────────────────────────────────────┘
//	     a successful probe
//
// A probe that times out does not count if some byte of a response body came meanwhile, because a
// busy engine serves its health check last. After a failed probe the next one follows soon, and so
// on until one succeeds, so a replica that is back is used within a second. The circuit decides
// whether a reachable replica works. A down replica stays in the set, and so on the hash ring.
//
// All fields may be used from any goroutine. Requests and probes write them concurrently: the last
// write wins, and the next probe corrects a wrong one.
type health struct {
	downReason   atomic.Pointer[error]  // nil while up
	lastResponse atomic.Int64           // when a good response body began, monotonic
	lastSilence  atomic.Int64           // when silence was counted as a failure, monotonic
	meanWait     atomic.Int64           // mean recent wait for the first byte of a stream
	slowest      atomic.Uint64          // ms of a wait for the first byte, and the second in which it ended
	bodyReads    atomic.Uint64          // reads that returned bytes of a response body
	probeNow     chan struct{}          // capacity 1; asks probeLoop for a probe at once
	observer     atomic.Pointer[func()] // see OnChange
	reportState  func()                 // see Replica.reportState; never changed
}

const (
	// maxProbeFailures is the number of consecutive failed probes that marks a replica down, the
	// same as in Ray Serve.
	maxProbeFailures = 3
	// minProbeRetry and maxProbeRetry bound the delay of a probe after a failed one. There is no
	// backoff: a refused connection costs little, and a recovered replica is needed at once.
	minProbeRetry = 500 * time.Millisecond
	maxProbeRetry = 750 * time.Millisecond
)

// Available reports whether the replica can be expected to serve a new request: up, with a circuit
// that admits requests.
func (r *Replica) Available() bool { return r.Up() && r.circuit.admits() }

// Up reports whether the replica is reachable and serving: neither down nor draining, though
// perhaps ejected.
func (r *Replica) Up() bool { return r.health.downReason.Load() == nil && !r.Draining() }

// Ejected reports whether the replica's circuit is open, and since when on a monotonic clock.
func (r *Replica) Ejected() (since time.Duration, open bool) {
	return time.Duration(r.circuit.ejectedAt.Load()), r.circuit.state().isOpen()
}

// AllowEjected sets whether the replica admits requests although the circuit is open. The caller
// decides by the state of the other replicas (Envoy's panic threshold).
func (r *Replica) AllowEjected(allowed bool) { r.circuit.setBypass(allowed) }

// Ejections returns how often the circuit was opened so far.
func (r *Replica) Ejections() uint64 { return r.circuit.totalEjections.Load() }

// State returns the replica's state, one of States.
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

// States lists the values that State returns.
var States = []string{"serving", "half_open", "ejected", "down", "draining"}

// Draining reports whether the replica admits nothing new for good: draining, or removed.
func (r *Replica) Draining() bool { return r.gate.counts().phase != serving }

// DownReason returns the reason why the replica is not available: the last error of the replica, or
// of the attempt to connect. The reason is "" while the replica is available.
func (r *Replica) DownReason() string {
	if err := r.health.downReason.Load(); err != nil {
		return (*err).Error()
	}
	if err := r.gate.counts().admissionError(); err != nil {
		return err.Error()
	}
	if err := r.circuit.reason.Load(); err != nil && !r.circuit.admits() {
		return "ejected: " + (*err).Error()
	}
	return ""
}

// OnChange registers f, which replaces the function registered before. f is called after each
// change of Available and whenever a waiter might be served, from the goroutine that caused the
// change: any that serves a request, probes or runs a timer. f must not block.
func (r *Replica) OnChange(f func()) { r.health.observer.Store(&f) }

// NotifyFreed notifies the observer of a free slot for which nothing waits at the releasing router.
// The replica may serve another model by now, with waiters for the slot.
func (r *Replica) NotifyFreed() { r.health.notifyObserver() }

// notifyObserver reports the state if changed, then calls the observer. No lock may be held.
func (h *health) notifyObserver() {
	h.reportState()
	if f := h.observer.Load(); f != nil {
		(*f)()
	}
}

// setHealth records the reason why the replica cannot serve, nil if none, and reports a change
// between up and down. The swap is atomic, so of concurrent callers exactly one sees the change and
// notifies the observer.
func (r *Replica) setHealth(err error) (changed bool) {
	var reason *error
	if err != nil {
		reason = &err
	}
	old := r.health.downReason.Swap(reason)
	if changed = (old == nil) != (reason == nil); changed {
		if err == nil {
			r.markRecovered() // before the observer compares loads
		}
		r.health.notifyObserver()
	}
	return changed
}

// markDown marks the replica down until a probe succeeds, requests a probe at once, and reports
// whether the replica was up before. markDown does not block.
func (r *Replica) markDown(err error) (changed bool) {
	changed = r.setHealth(err)
	r.RequestProbe()
	return changed
}

// RequestProbe requests a probe at once, because of a sign that the replica is about to stop. It
// does not block.
func (r *Replica) RequestProbe() {
	select {
	case r.health.probeNow <- struct{}{}:
	default: // a probe is requested already
	}
}

// probeLoop probes the replica until ctx ends: immediately, then once per period less up to 20 % of
// jitter, soon after a failure, and at once when markDown asks. One goroutine runs it, which also
// checks the served name when the replica is up for the first time or again, or the name is new.
func (r *Replica) probeLoop(ctx context.Context) {
	failures, checkedName := 0, ""
	for {
		reads := r.health.bodyReads.Load()
		err := r.probeOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		period, late := r.Endpoint().ProbeEvery, errors.Is(err, errProbeTimeout)
		delay := period - rand.N(period/5+1)
		retry := min(period, minProbeRetry+rand.N(maxProbeRetry-minProbeRetry))
		switch {
		case err == nil:
			failures = 0
			recovered := r.setHealth(nil)
			if name := r.Endpoint().ServedName; name != "" && (recovered || name != checkedName) {
				checkedName = name
				r.checkServedName(ctx)
			}
		case errors.Is(err, ErrExhausted): // no probe was sent
			r.reportExhausted(err)
			delay = retry
		case late && r.health.bodyReads.Load() != reads: // alive, but busy
			failures = 0
		default:
			if failures++; failures >= maxProbeFailures || late || errors.Is(err, ErrDraining) || !r.Up() {
				r.setHealth(err)
			}
			delay = retry
		}
		if !r.waitForProbe(ctx, delay) {
			return
		}
	}
}

// errProbeTimeout is the DownReason after probe timeouts. Clients may read the text.
var errProbeTimeout = errors.New("health check timed out")

// probeOnce sends one probe, within the endpoint's ProbeTimeout.
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

// waitForProbe waits for d, or until a probe is requested. The result is false if ctx ended.
func (r *Replica) waitForProbe(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.health.probeNow:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
