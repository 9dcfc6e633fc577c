package llmserver

import (
	"sync/atomic"
	"time"
)

// The rule and its numbers are those of Envoy for consecutive gateway failures (source:
// envoy.config.cluster.v3.OutlierDetection).
const (
	maxFailures      = 5                 // consecutive failures that eject a replica
	baseEjectionTime = 30 * time.Second  // of the first ejection; doubles with each further one
	maxEjectionTime  = 300 * time.Second // of any ejection
	// trialTimeout is the time for which a half-open circuit waits for the outcome of a trial
	// request before admitting another one.
	trialTimeout = 5 * time.Second
)

// A circuit keeps requests away from a replica that is reachable but fails them. An unreachable
// replica is the business of health.
//
//	         failed in a row           the time is over: one request is admitted
//	closed ──────────────────▶ open ───────────────────────────────────────▶ half-open
//	   ▲                        ▲ ▲                                            │ │ │
//	   │                        │ └──── failed: open for twice the time ───────┘ │ │
//	   │                        └────── no outcome in 5 s: one more is admitted ─┘ │
//	   └─────────────────────────────── first byte of a good response ─────────────┘
//
// The one request admitted by a half-open circuit is the trial ("probe" means a health check in
// this package). The admission moves the end of the open time 5 s ahead, and no request owns the
// trial. Therefore a trial cannot be lost: whatever becomes of the request, another one is admitted
// after 5 s, and the outcome of any request admitted since the circuit opened counts.
//
// A bypassed circuit admits every request although open; routers bypass circuits when too few other
// replicas are left. Trials and their outcomes are the same then.
//
// The whole state is one word, so that each edge is one compare-and-swap and the winner of an edge
// alone reports it. The zero word is closed without a failure, which is the fast path of admits and
// tryAdmit. All methods may be called from any goroutine and do not block.
//
//	63                   16 15        14       13          8 7        0
//	│ until, ms monotonic  │ half-open│bypassed│  ejections  │ failures │
type circuit struct {
	word           atomic.Uint64
	openedAt       atomic.Int64 // time of the last opening, monotonic
	totalEjections atomic.Uint64
	lastFailure    atomic.Pointer[error]
}

// A circuitState is a circuit's word, unpacked.
type circuitState struct {
	until              int64 // end of the open time in monotonic milliseconds; zero while closed
	halfOpen, bypassed bool
	ejections          uint // since the circuit was closed last
	failures           uint // consecutive, while closed
}

func (s circuitState) pack() uint64 {
	w := uint64(s.until)<<16 | uint64(s.ejections&0x3f)<<8 | uint64(s.failures&0xff)
	if s.halfOpen {
		w |= 1 << 15
	}
	if s.bypassed {
		w |= 1 << 14
	}
	return w
}

func unpackCircuit(w uint64) circuitState {
	return circuitState{
		until: int64(w >> 16), halfOpen: w>>15&1 == 1, bypassed: w>>14&1 == 1,
		ejections: uint(w >> 8 & 0x3f), failures: uint(w & 0xff),
	}
}

func (s circuitState) isOpen() bool { return s.until != 0 }

// expired reports whether an open circuit's time is over, so that a trial request is admitted.
func (s circuitState) expired() bool { return monotonic().Milliseconds() >= s.until }

// deadlineAfter returns the value of circuitState.until for a time d from now.
func deadlineAfter(d time.Duration) int64 { return (monotonic() + d).Milliseconds() }

// ejectionTime returns how long the circuit stays open after the latest ejection.
func (s circuitState) ejectionTime() time.Duration {
	d := baseEjectionTime
	for n := uint(1); n < s.ejections && d < maxEjectionTime; n++ {
		d *= 2
	}
	return min(d, maxEjectionTime)
}

func (c *circuit) state() circuitState { return unpackCircuit(c.word.Load()) }

// admits reports whether tryAdmit would admit a request now. There is no side effect: only tryAdmit
// takes the trial.
func (c *circuit) admits() bool {
	s := c.state()
	return !s.isOpen() || s.bypassed || s.expired()
}

// tryAdmit reports whether a request is admitted, and whether it is the trial of a half-open
// circuit. When the open time is over, exactly one of concurrent callers gets the trial: the
// winning compare-and-swap moves the time ahead, and the others find the time not yet over.
func (c *circuit) tryAdmit() (trial, ok bool) {
	if c.word.Load()>>16 == 0 {
		return false, true
	}
	c.transition(func(s circuitState) circuitState {
		trial = s.isOpen() && s.expired()
		ok = trial || s.bypassed || !s.isOpen()
		if trial {
			s.halfOpen, s.until = true, deadlineAfter(trialTimeout)
		}
		return s
	})
	return trial, ok
}

// recordSuccess records a good response to a request admitted at the given time, and reports
// whether the circuit was closed thereby. A request admitted before the circuit opened does not
// close the circuit: such a success is no evidence about the time since.
func (c *circuit) recordSuccess(admitted time.Duration) (closed bool) {
	if c.word.Load() == 0 {
		return false
	}
	c.transition(func(s circuitState) circuitState {
		if closed = s.isOpen(); closed && int64(admitted) < c.openedAt.Load() {
			closed = false
			return s
		}
		return circuitState{}
	})
	return closed
}

// recordFailure records the failure of a request admitted at the given time. The result is the
// ejection time if this failure opened the circuit, zero otherwise. Of racing failures one opens
// the circuit. An open circuit counts only the failures of requests admitted since the opening, and
// only while half-open.
func (c *circuit) recordFailure(admitted time.Duration, cause error) (ejected time.Duration) {
	c.lastFailure.Store(&cause)
	c.transition(func(s circuitState) circuitState {
		ejected = 0
		switch {
		case !s.isOpen() && s.failures+1 < maxFailures:
			s.failures++
			return s
		case s.isOpen() && (!s.halfOpen || int64(admitted) < c.openedAt.Load()):
			return s
		}
		next := circuitState{ejections: min(s.ejections+1, 16), bypassed: s.bypassed}
		ejected = next.ejectionTime()
		next.until = deadlineAfter(ejected)
		c.openedAt.Store(int64(monotonic()))
		return next
	})
	if ejected > 0 {
		c.totalEjections.Add(1)
	}
	return ejected
}

// setBypass sets whether the circuit admits every request although open. A closed circuit cannot be
// bypassed, so the next ejection starts without a bypass.
func (c *circuit) setBypass(bypassed bool) {
	c.transition(func(s circuitState) circuitState {
		s.bypassed = bypassed && s.isOpen()
		return s
	})
}

// transition is the only function that writes the word. A lost race causes another call of next, so
// next must derive everything, captured results included, from its argument.
func (c *circuit) transition(next func(circuitState) circuitState) {
	for {
		w := c.word.Load()
		if n := next(unpackCircuit(w)).pack(); n == w || c.word.CompareAndSwap(w, n) {
			return
		}
	}
}
