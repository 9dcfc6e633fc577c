package llmserver

import (
	"sync/atomic"
	"time"
)

// The rule is Envoy's for consecutive gateway failures, with its default numbers: so many in a row
// eject a host, for 30 s at first and never more than 300 s. Source: Envoy's outlier detection,
// envoy.config.cluster.v3.OutlierDetection.
const (
	tolerated       = 5
	firstEjection   = 30 * time.Second
	longestEjection = 300 * time.Second
	// trialTime is how long an open circuit whose time is over waits for the verdict of the request
	// that it let in before it lets in the next one.
	trialTime = 5 * time.Second
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
	word      atomic.Uint64
	opened    atomic.Int64           // when it opened last, by monotonic time
	ejections atomic.Uint64          // so far
	failure   atomic.Pointer[string] // the last that was counted
}

// standing is a circuit's word, unpacked.
type standing struct {
	until            int64 // zero while closed
	halfOpen, spared bool
	times            uint // ejections since it was closed last
	failures         uint // in a row, while closed
}

func (s standing) pack() uint64 {
	w := uint64(s.until)<<16 | uint64(s.times&0x3f)<<8 | uint64(s.failures&0xff)
	if s.halfOpen {
		w |= 1 << 15
	}
	if s.spared {
		w |= 1 << 14
	}
	return w
}

func unpackStanding(w uint64) standing {
	return standing{
		until: int64(w >> 16), halfOpen: w>>15&1 == 1, spared: w>>14&1 == 1,
		times: uint(w >> 8 & 0x3f), failures: uint(w & 0xff),
	}
}

func (s standing) open() bool { return s.until != 0 }

// due reports whether an open circuit's time is over.
func (s standing) due() bool { return monotonic().Milliseconds() >= s.until }

// ends returns the word's form of the time that is d from now.
func ends(d time.Duration) int64 { return (monotonic() + d).Milliseconds() }

// ejected is for how long the circuit was opened last.
func (s standing) ejected() time.Duration {
	d := firstEjection
	for n := uint(1); n < s.times; n++ {
		if d *= 2; d >= longestEjection {
			return longestEjection
		}
	}
	return d
}

func (c *circuit) read() standing { return unpackStanding(c.word.Load()) }

// admits reports whether a request would be let in.
func (c *circuit) admits() bool {
	w := c.word.Load()
	if w>>16 == 0 {
		return true
	}
	s := unpackStanding(w)
	return s.spared || s.due()
}

// enter lets a request in, perhaps as a trial.
func (c *circuit) enter() (trial, ok bool) {
	if c.word.Load()>>16 == 0 {
		return false, true
	}
	c.edge(func(s standing) standing {
		trial = s.open() && s.due()
		ok = trial || s.spared || !s.open()
		if trial {
			s.halfOpen, s.until = true, ends(trialTime)
		}
		return s
	})
	return trial, ok
}

// succeed records a good response to a request that was let in at that time. It reports whether that has closed
// the circuit: what was sent before it opened says nothing of now.
func (c *circuit) succeed(since time.Duration) (closed bool) {
	if c.word.Load() == 0 {
		return false
	}
	c.edge(func(s standing) standing {
		if closed = s.open(); closed && int64(since) < c.opened.Load() {
			closed = false
			return s
		}
		return standing{}
	})
	return closed
}

// fail records a failure of a request that was let in at that time. It returns for how long that has opened
// the circuit; zero if it has not.
func (c *circuit) fail(since time.Duration, why error) (ejected time.Duration) {
	text := why.Error()
	c.failure.Store(&text)
	c.edge(func(s standing) standing {
		ejected = 0
		switch {
		case !s.open() && s.failures+1 < tolerated:
			s.failures++
			return s
		case s.open() && (!s.halfOpen || int64(since) < c.opened.Load()):
			return s
		}
		next := standing{times: min(s.times+1, 16), spared: s.spared}
		ejected = next.ejected()
		next.until = ends(ejected)
		c.opened.Store(int64(monotonic()))
		return next
	})
	if ejected > 0 {
		c.ejections.Add(1)
	}
	return ejected
}

// spare sets whether the circuit lets requests in though it is open.
func (c *circuit) spare(spared bool) {
	c.edge(func(s standing) standing {
		s.spared = spared && s.open()
		return s
	})
}

// edge is the one place where the word changes.
func (c *circuit) edge(next func(standing) standing) {
	for {
		w := c.word.Load()
		if n := next(unpackStanding(w)).pack(); n == w || c.word.CompareAndSwap(w, n) {
			return
		}
	}
}
