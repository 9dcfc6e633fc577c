package llmserver

import (
	"fmt"
	"sync/atomic"
)

// MaxLimit is the largest capacity of a replica, and the meaning of a configured "no limit". Larger
// values are clamped.
const MaxLimit = 1<<gateBits - 1

// A gate decides whether a replica admits one more request. Everything needed for the decision is
// in one word, so each check-and-count is one compare-and-swap and no lock is held:
//
//	63      60 59         40 39         20 19          0
//	│  phase  │    limit    │  reserved   │   running   │
//
// reserved + running is the load that balancing, draining and gauges use. The sum exceeds the limit
// only after the limit was lowered. All methods may be called from any goroutine and do not block.
type gate struct{ word atomic.Uint64 }

const (
	gateBits = 20
	gateMask = 1<<gateBits - 1

	oneRunning  = uint64(1)
	oneReserved = uint64(1) << gateBits
)

// A phase is a replica's position on the way out of service. Endpoint.Draining decides between the
// first two (setDraining); only Pool enters and leaves the third.
type phase uint64

const (
	serving  phase = iota
	draining       // admits nothing; a reserved slot may still be started
	retired        // removed from the set: admits nothing and starts nothing
)

// counts is a gate's word, unpacked.
type counts struct {
	running, reserved, limit int
	phase                    phase
}

func (c counts) ongoing() int { return c.running + c.reserved }

func unpackCounts(w uint64) counts {
	return counts{
		running:  int(w & gateMask),
		reserved: int(w >> gateBits & gateMask),
		limit:    int(w >> (2 * gateBits) & gateMask),
		phase:    phase(w >> (3 * gateBits)),
	}
}

// counts returns running, reserved, limit and phase at one moment.
func (g *gate) counts() counts { return unpackCounts(g.word.Load()) }

// setLimit changes the capacity and nothing else. A lowered limit ends no request; the gate admits
// nothing until fewer requests than the new limit are ongoing.
func (g *gate) setLimit(limit int) {
	l := uint64(min(max(limit, 0), MaxLimit))
	g.update(func(w uint64) (uint64, error) {
		return w&^(gateMask<<(2*gateBits)) | l<<(2*gateBits), nil
	})
}

// setPhase changes the phase and nothing else.
func (g *gate) setPhase(p phase) {
	g.update(func(w uint64) (uint64, error) {
		return w&(1<<(3*gateBits)-1) | uint64(p)<<(3*gateBits), nil
	})
}

// setDraining begins or ends a drain, and reports whether the phase changed. A retired gate stays
// retired.
func (g *gate) setDraining(drain bool) (changed bool) {
	next := serving
	if drain {
		next = draining
	}
	g.update(func(w uint64) (uint64, error) {
		now := unpackCounts(w).phase
		if changed = now != retired && now != next; !changed {
			return w, nil
		}
		return w&(1<<(3*gateBits)-1) | uint64(next)<<(3*gateBits), nil
	})
	return changed
}

// reserveUnit takes one unit if fewer requests are ongoing than the limit and, if bound > 0, than
// bound. The check and the count are the same compare-and-swap: of many callers that compete for
// the last unit exactly one gets it. reserveUnit returns ErrFull, ErrDraining or ErrGone if nothing
// was taken.
func (g *gate) reserveUnit(bound int) error {
	return g.update(func(w uint64) (uint64, error) {
		c := unpackCounts(w)
		if err := c.admissionError(); err != nil {
			return w, err
		}
		if c.ongoing() >= c.limit || bound > 0 && c.ongoing() >= bound {
			return w, ErrFull
		}
		return w + oneReserved, nil
	})
}

// transferUnit turns one unit, reserved or running, into a reserved one in a single step. The unit
// is free at no moment, so a concurrent reserveUnit cannot take the unit. On an error nothing has
// changed: ErrFull while more is ongoing than a lowered limit allows, ErrDraining, or ErrGone.
func (g *gate) transferUnit(unit uint64) error {
	return g.update(func(w uint64) (uint64, error) {
		c := unpackCounts(w)
		if err := c.admissionError(); err != nil {
			return w, err
		}
		if c.ongoing() > c.limit {
			return w, ErrFull
		}
		return subtract(w, unit) + oneReserved, nil
	})
}

// startUnit turns a reserved unit into a running one. The sum of both does not change.
func (g *gate) startUnit() {
	g.update(func(w uint64) (uint64, error) { return subtract(w, oneReserved) + oneRunning, nil })
}

// releaseUnit returns one unit. Only the winner of a slot's edge to done may call it.
func (g *gate) releaseUnit(unit uint64) {
	g.update(func(w uint64) (uint64, error) { return subtract(w, unit), nil })
}

// update is the only function that writes the word. A lost race causes another call of next, so
// next must be a pure function of the word.
func (g *gate) update(next func(uint64) (uint64, error)) error {
	for {
		w := g.word.Load()
		n, err := next(w)
		if err != nil || g.word.CompareAndSwap(w, n) {
			return err
		}
	}
}

// admissionError returns the reason why the phase admits nothing, or nil while serving.
func (c counts) admissionError() error {
	switch c.phase {
	case serving:
		return nil
	case draining:
		return ErrDraining
	default:
		return ErrGone
	}
}

// subtract removes one unit from the word. subtract panics if there is none: the count would wrap
// into the neighboring field, and some slot was released twice.
func subtract(w, unit uint64) uint64 {
	c := unpackCounts(w)
	if unit == oneRunning && c.running == 0 || unit == oneReserved && c.reserved == 0 {
		panic(fmt.Sprintf("BUG: slot released twice: %d running, %d reserved", c.running, c.reserved))
	}
	return w - unit
}
