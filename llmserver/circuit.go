package llmserver

import (
	"sync/atomic"
	"time"
)

// Trials of an ejected replica. Envoy doubles the time out of service instead (source:
// envoy.config.cluster.v3.OutlierDetection); here a failed trial is retried on another replica and
// costs its client nothing, so a trial a second brings a replica back soon after recovery.
const (
	// trialInterval is the open time, and also the time for which a half-open circuit waits for the
	// outcome of a trial before admitting another one.
	trialInterval = time.Second
	// maxTrialInterval bounds the open time after failures that clients have seen, which doubles
	// after quickTrials trials.
	maxTrialInterval = 30 * time.Second
	quickTrials      = 5
)

// A circuit keeps requests away from a replica that is reachable but fails them while its siblings
// do not: see Cohort for the verdict. An unreachable replica is the business of health.
//
//	         ejected                    the time is over: one request is admitted
//	closed ──────────────────▶ open ───────────────────────────────────────▶ half-open
//	   ▲                        ▲ ▲                                            │ │ │
//	   │                        │ └──── failed: open again ────────────────────┘ │ │
//	   │                        └────── no outcome in 1 s: one more is admitted ─┘ │
//	   └─────────────────────────────── served ────────────────────────────────────┘
//
// The one request admitted by a half-open circuit is the trial ("probe" means a health check in
// this package). The admission moves the end of the open time ahead by trialInterval, and no
// request owns the trial. Therefore a trial cannot be lost: whatever becomes of the request,
// another one is admitted a second later, and the outcome of any request admitted since the circuit
// opened counts.
//
// A trial is served at the first byte of a good response. After a response that broke within its
// body the end of a response is needed, because another first byte would prove nothing; and such
// failures have reached clients, so the open time doubles after the first few trials.
//
// A bypassed circuit admits every request although open; routers bypass circuits when too few other
// replicas are left. Trials and their outcomes are the same then.
//
// The whole state is one word, so that each edge is one compare-and-swap and the winner of an edge
// alone reports it. The zero word is closed, which is the fast path of admits and tryAdmit. All
// methods may be called from any goroutine and do not block.
//
//	63                   16 15        14        13       12      8 7        0
//	│ until, ms monotonic  │ half-open│ bypassed│ broke  │    -   │  trials │
type circuit struct {
	word           atomic.Uint64
	ejectedAt      atomic.Int64 // when the circuit ceased to be closed, monotonic
	openedAt       atomic.Int64 // when the circuit was opened, or opened again by a failed trial
	totalEjections atomic.Uint64
	reason         atomic.Pointer[error] // of the last opening
}

// A circuitState is a circuit's word, unpacked.
type circuitState struct {
	until              int64 // end of the open time in monotonic milliseconds; zero while closed
	halfOpen, bypassed bool
	broke              bool // opened by a response that broke within its body
	trials             uint // failed ones since the circuit was closed last
}

func (s circuitState) pack() uint64 {
	w := uint64(s.until)<<16 | uint64(s.trials&0xff)
	if s.halfOpen {
		w |= 1 << 15
	}
	if s.bypassed {
		w |= 1 << 14
	}
	if s.broke {
		w |= 1 << 13
	}
	return w
}

func unpackCircuit(w uint64) circuitState {
	return circuitState{
		until: int64(w >> 16), halfOpen: w>>15&1 == 1, bypassed: w>>14&1 == 1, broke: w>>13&1 == 1,
		trials: uint(w & 0xff),
	}
}

func (s circuitState) isOpen() bool { return s.until != 0 }

// expired reports whether an open circuit's time is over, so that a trial request is admitted.
func (s circuitState) expired() bool { return monotonic().Milliseconds() >= s.until }

// deadlineAfter returns the value of circuitState.until for a time d from now.
func deadlineAfter(d time.Duration) int64 { return (monotonic() + d).Milliseconds() }

// openTime returns how long the circuit stays open until the next trial.
func (s circuitState) openTime() time.Duration {
	if !s.broke || s.trials < quickTrials {
		return trialInterval
	}
	return min(trialInterval<<(min(s.trials, 30)-quickTrials+1), maxTrialInterval)
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
			s.halfOpen, s.until = true, deadlineAfter(trialInterval)
		}
		return s
	})
	return trial, ok
}

// recordSuccess records a good response to a request admitted at the given time, at the response's
// first byte or at the end, and reports whether the circuit was closed thereby. A request admitted
// before the circuit opened does not close the circuit: such a success is no evidence about the
// time since.
func (c *circuit) recordSuccess(admitted time.Duration, complete bool) (closed bool) {
	if c.word.Load() == 0 {
		return false
	}
	c.transition(func(s circuitState) circuitState {
		closed = s.isOpen() && int64(admitted) >= c.openedAt.Load() && (complete || !s.broke)
		if closed {
			return circuitState{}
		}
		return s
	})
	return closed
}

// open opens a closed circuit and returns the time until the first trial, zero if the circuit was
// open already. Of racing calls one opens the circuit. broke is true if a response broke within its
// body.
func (c *circuit) open(reason error, broke bool) (until time.Duration) {
	c.transition(func(s circuitState) circuitState {
		if until = 0; s.isOpen() {
			return s
		}
		return c.opened(circuitState{broke: broke}, &until)
	})
	if until > 0 {
		c.reason.Store(&reason)
		c.ejectedAt.Store(c.openedAt.Load())
		c.totalEjections.Add(1)
	}
	return until
}

// failTrial records the failure of a request admitted at the given time, and returns the time until
// the next trial if the circuit was half-open. Only a request admitted since the circuit opened
// counts; in any other case the result is zero.
func (c *circuit) failTrial(admitted time.Duration, reason error, broke bool) (until time.Duration) {
	c.transition(func(s circuitState) circuitState {
		if until = 0; !s.isOpen() || !s.halfOpen || int64(admitted) < c.openedAt.Load() {
			return s
		}
		next := circuitState{bypassed: s.bypassed, broke: s.broke || broke, trials: min(s.trials+1, 0xff)}
		return c.opened(next, &until)
	})
	if until > 0 {
		c.reason.Store(&reason)
	}
	return until
}

// opened returns the state at the begin of an open time, and stores the time in until.
func (c *circuit) opened(s circuitState, until *time.Duration) circuitState {
	*until = s.openTime()
	s.until = deadlineAfter(*until)
	c.openedAt.Store(int64(monotonic()))
	return s
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
