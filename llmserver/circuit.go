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
)

// circuit keeps requests away from a replica that is there but fails them. Who cannot be reached is
// down, which is health's business.
//
//	         failed in a row           the time is over and a request claims a slot
//	closed ──────────────────▶ open ────────────────────────────────────────▶ half-open
//	   ▲                        ▲ ▲                                             │ │ │
//	   │                        │ └──── failed: open for twice the time ────────┘ │ │
//	   │                        └────── no verdict: the next one is the trial ────┘ │
//	   └─────────────────────────────── first byte of a good answer ────────────────┘
//
// The request that makes it half-open is its trial, and no other is let in meanwhile. An open
// circuit may be spared, where too few other replicas are left: then it lets everybody in, and has
// its trials all the same. All of it is one word, so that every edge is one compare-and-swap and no
// state can be stuck; zero is closed without a failure.
//
//	63                 16 15     14    13      8 7        0
//	│  until, Unix ms    │ trial│spared│ times  │ failures │
type circuit struct {
	word      atomic.Uint64
	ejections atomic.Uint64          // so far
	failure   atomic.Pointer[string] // the last that was counted
}

// standing is a circuit's word, unpacked.
type standing struct {
	until         int64 // zero while closed
	trial, spared bool
	times         uint // ejections since it was closed last
	failures      uint // in a row, while closed
}

func (s standing) pack() uint64 {
	w := uint64(s.until)<<16 | uint64(s.times&0x3f)<<8 | uint64(s.failures&0xff)
	if s.trial {
		w |= 1 << 15
	}
	if s.spared {
		w |= 1 << 14
	}
	return w
}

func unpackStanding(w uint64) standing {
	return standing{
		until: int64(w >> 16), trial: w>>15&1 == 1, spared: w>>14&1 == 1,
		times: uint(w >> 8 & 0x3f), failures: uint(w & 0xff),
	}
}

func (s standing) open() bool { return s.until != 0 }

// due tells an open circuit whose time is over.
func (s standing) due() bool { return time.Now().UnixMilli() >= s.until }

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

// admits tells whether a request would be let in.
func (c *circuit) admits() bool {
	w := c.word.Load()
	if w>>16 == 0 {
		return true
	}
	s := unpackStanding(w)
	return s.spared || !s.trial && s.due()
}

// enter lets a request in, perhaps as the trial.
func (c *circuit) enter() (trial, ok bool) {
	if c.word.Load()>>16 == 0 {
		return false, true
	}
	c.edge(func(s standing) standing {
		trial = s.open() && !s.trial && s.due()
		ok = trial || s.spared || !s.open()
		s.trial = s.trial || trial
		return s
	})
	return trial, ok
}

// leave ends a trial that came to no verdict.
func (c *circuit) leave() {
	c.edge(func(s standing) standing {
		s.trial = false
		return s
	})
}

// succeed hears of a good answer. It tells whether that has closed the circuit: only the trial's does,
// as others may have been sent before it was opened.
func (c *circuit) succeed(trial bool) (closed bool) {
	if c.word.Load() == 0 {
		return false
	}
	c.edge(func(s standing) standing {
		closed = trial && s.open()
		if closed {
			return standing{}
		}
		s.failures = 0
		return s
	})
	return closed
}

// fail hears of a failure. It tells for how long that has opened the circuit; zero if it has not.
func (c *circuit) fail(trial bool, why error) (ejected time.Duration) {
	text := why.Error()
	c.failure.Store(&text)
	c.edge(func(s standing) standing {
		ejected = 0
		switch {
		case !s.open() && s.failures+1 < tolerated:
			s.failures++
			return s
		case s.open() && !trial:
			return s
		}
		next := standing{times: min(s.times+1, 16), spared: s.spared}
		ejected = next.ejected()
		next.until = time.Now().Add(ejected).UnixMilli()
		return next
	})
	if ejected > 0 {
		c.ejections.Add(1)
	}
	return ejected
}

// spare sets whether the circuit lets requests in though it is open.
func (c *circuit) spare(spared bool) {
	if c.word.Load()>>16 == 0 {
		return
	}
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
