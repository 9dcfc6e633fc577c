package llmserver

import (
	"fmt"
	"sync/atomic"
)

// MaxLimit is the largest capacity a replica can have; larger ones are
// clamped to it. It is what a configured "no limit" means.
const MaxLimit = 1<<gateBits - 1

// gate is everything that decides whether a replica takes one more request, in
// one word, so that every check-and-count is one compare-and-swap:
//
//	63      60 59         40 39         20 19          0
//	│  phase  │    limit    │  reserved   │   running   │
//
// reserved + running is what the replica's load is everywhere. It passes the
// limit only when the limit is lowered under it.
type gate struct{ word atomic.Uint64 }

const (
	gateBits = 20
	gateMask = 1<<gateBits - 1

	oneRunning  = uint64(1)
	oneReserved = uint64(1) << gateBits
)

// phase is where a replica stands on its way out.
type phase uint64

const (
	serving  phase = iota
	draining       // nothing new; what is reserved may still be dispatched
	retired        // gone from the set: nothing new, nothing more dispatched
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

func (g *gate) counts() counts { return unpackCounts(g.word.Load()) }

// setLimit changes the capacity and nothing else: a lowered one admits
// nothing until ongoing is below it.
func (g *gate) setLimit(limit int) {
	l := uint64(min(max(limit, 0), MaxLimit))
	g.update(func(w uint64) (uint64, error) {
		return w&^(gateMask<<(2*gateBits)) | l<<(2*gateBits), nil
	})
}

// move puts the gate in phase p.
func (g *gate) setPhase(p phase) {
	g.update(func(w uint64) (uint64, error) {
		return w&(1<<(3*gateBits)-1) | uint64(p)<<(3*gateBits), nil
	})
}

// reserve takes one unit if fewer than the limit are ongoing, and fewer than
// bound where bound > 0. It answers ErrFull, ErrDraining or ErrGone.
func (g *gate) reserve(bound int) error {
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

// pass ends one unit, reserved or running, and reserves it anew in the same
// step, so that it is free at no moment. Refused with ErrFull while more is ongoing than
// a lowered limit allows, and when the replica is leaving; then nothing has changed.
func (g *gate) transfer(unit uint64) error {
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

// start turns a reserved unit into a running one.
func (g *gate) start() {
	g.update(func(w uint64) (uint64, error) { return subtract(w, oneReserved) + oneRunning, nil })
}

// free gives one unit back.
func (g *gate) release(unit uint64) {
	g.update(func(w uint64) (uint64, error) { return subtract(w, unit), nil })
}

// edge is the one place where the word changes.
func (g *gate) update(next func(uint64) (uint64, error)) error {
	for {
		w := g.word.Load()
		n, err := next(w)
		if err != nil || g.word.CompareAndSwap(w, n) {
			return err
		}
	}
}

// closed says why nothing new may be admitted, if so.
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

// take subtracts one unit that must be there: a count that would go below
// zero is a slot given back twice.
func subtract(w, unit uint64) uint64 {
	c := unpackCounts(w)
	if unit == oneRunning && c.running == 0 || unit == oneReserved && c.reserved == 0 {
		panic(fmt.Sprintf("BUG: a slot given back twice: %d running, %d reserved", c.running, c.reserved))
	}
	return w - unit
}
