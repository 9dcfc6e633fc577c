package llmserver

import (
	"sync/atomic"
	"time"
)

// The rule is Envoy's for consecutive gateway failures, with its default numbers: so many in a row
// eject a host, for 30 s at first and never more than 300 s. Source: Envoy's outlier detection,
// envoy.config.cluster.v3.OutlierDetection.
const (
	maxFailures      = 5
	baseEjectionTime = 30 * time.Second
	maxEjectionTime  = 300 * time.Second
	// trialTime is how long an open circuit whose time is over waits for the verdict of the request
	// that it let in before it lets in the next one.
	trialTimeout = 5 * time.Second
)

// circuit keeps requests away from a replica that is there but fails them. Who cannot be reached is
// down, which is health's business.
//
//	         failed in a row           the time is over: one request is let in
//	closed ──────────────────▶ open ───────────────────────────────────────▶ half-open
//	   ▲                        ▲ ▲                                            │ │ │
//	   │                        │ └──── failed: open for twice the time ───────┘ │ │
//	   │                        └────── no verdict for 5 s: one more is let in ──┘ │
//	   └─────────────────────────────── first byte of a good response ─────────────┘
//
// Letting a request in moves the end of the time 5 s ahead. Nobody owns the trial, so none can be lost:
// the verdict is that of any request that was let in after the circuit opened. An open
// circuit may be spared, where too few other replicas are left: then it lets everybody in, and has
// its trials all the same. Zero is closed without a failure.
//
//	63                   16 15        14     13      8 7        0
//	│ until, ms monotonic  │ half-open│spared│  times │ failures │
type circuit struct {
	word           atomic.Uint64
	openedAt       atomic.Int64           // when it opened last, by monotonic time
	totalEjections atomic.Uint64          // so far
	lastFailure    atomic.Pointer[string] // the last that was counted
}

// standing is a circuit's word, unpacked.
type circuitState struct {
	until              int64 // zero while closed
	halfOpen, bypassed bool
	ejections          uint // ejections since it was closed last
	failures           uint // in a row, while closed
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

// due reports whether an open circuit's time is over.
func (s circuitState) expired() bool { return monotonic().Milliseconds() >= s.until }

// ends returns the word's form of the time that is d from now.
func deadlineAfter(d time.Duration) int64 { return (monotonic() + d).Milliseconds() }

// ejected is for how long the circuit was opened last.
func (s circuitState) ejectionTime() time.Duration {
	d := baseEjectionTime
	for n := uint(1); n < s.ejections; n++ {
		if d *= 2; d >= maxEjectionTime {
			return maxEjectionTime
		}
	}
	return d
}

func (c *circuit) state() circuitState { return unpackCircuit(c.word.Load()) }

// admits reports whether a request would be let in.
func (c *circuit) admits() bool {
	w := c.word.Load()
	if w>>16 == 0 {
		return true
	}
	s := unpackCircuit(w)
	return s.bypassed || s.expired()
}

// enter lets a request in, perhaps as a trial.
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

// succeed records a good response to a request that was let in at that time. It reports whether that has closed
// the circuit: what was sent before it opened says nothing of now.
func (c *circuit) recordSuccess(since time.Duration) (closed bool) {
	if c.word.Load() == 0 {
		return false
	}
	c.transition(func(s circuitState) circuitState {
		if closed = s.isOpen(); closed && int64(since) < c.openedAt.Load() {
			closed = false
			return s
		}
		return circuitState{}
	})
	return closed
}

// fail records a failure of a request that was let in at that time. It returns for how long that has opened
// the circuit; zero if it has not.
func (c *circuit) recordFailure(since time.Duration, why error) (ejected time.Duration) {
	text := why.Error()
	c.lastFailure.Store(&text)
	c.transition(func(s circuitState) circuitState {
		ejected = 0
		switch {
		case !s.isOpen() && s.failures+1 < maxFailures:
			s.failures++
			return s
		case s.isOpen() && (!s.halfOpen || int64(since) < c.openedAt.Load()):
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

// spare sets whether the circuit lets requests in though it is open.
func (c *circuit) setBypass(spared bool) {
	c.transition(func(s circuitState) circuitState {
		s.bypassed = spared && s.isOpen()
		return s
	})
}

// edge is the one place where the word changes.
func (c *circuit) transition(next func(circuitState) circuitState) {
	for {
		w := c.word.Load()
		if n := next(unpackCircuit(w)).pack(); n == w || c.word.CompareAndSwap(w, n) {
			return
		}
	}
}
