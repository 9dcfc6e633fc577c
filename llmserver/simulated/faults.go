package simulated

import (
	"errors"
	"fmt"
	"sync"
)

// A Cut is a way in which a response ends early.
type Cut string

// The ways in which a response can end early.
const (
	CutAbort Cut = "abort" // the connection is closed before the end of the response, as when a process dies
	CutReset Cut = "reset" // the same with a TCP reset
	CutClean Cut = "clean" // the response ends properly, but too early
)

// Faults make an engine fail on demand. The zero value is a healthy engine.
type Faults struct {
	Status  int  `json:"status,omitempty"`  // refuse requests with this status, 200 to 999
	Garbage bool `json:"garbage,omitempty"` // the refusal's body is not JSON
	Hang    bool `json:"hang,omitempty"`    // hold requests before the first byte until the faults are replaced

	// Cut ends responses early: a stream after CutAfter events, any other response in the middle.
	// With CutAfter 0 both end before their first byte.
	Cut      Cut `json:"cut,omitempty"`
	CutAfter int `json:"cut_after,omitempty"`

	Times int `json:"times,omitempty"` // number of requests with the faults above; 0 is every request

	Slow      float64 `json:"slow,omitempty"`      // factor for the length of a step; 0 is 1
	Unhealthy bool    `json:"unhealthy,omitempty"` // /health returns 503
}

// check returns an error for invalid values.
func (f Faults) check() error {
	switch {
	case f.Status != 0 && (f.Status < 200 || f.Status > 999):
		return fmt.Errorf("status %d is not between 200 and 999", f.Status)
	case f.Cut != "" && f.Cut != CutAbort && f.Cut != CutReset && f.Cut != CutClean:
		return fmt.Errorf("cut %q is none of abort, reset, clean", f.Cut)
	case f.CutAfter < 0 || f.Times < 0:
		return errors.New("cut_after and times cannot be negative")
	case f.Slow < 0 || f.Slow > 1e6:
		return fmt.Errorf("slow %g is not between 0 and 1e6", f.Slow)
	}
	return nil
}

// SetFaults replaces the faults for requests arriving afterwards. Hanging requests continue. Slow
// also applies to the step in progress. SetFaults panics on invalid faults.
func (e *Engine) SetFaults(f Faults) {
	if err := f.check(); err != nil {
		panic("BUG: " + err.Error())
	}
	e.faults.replace(f)
	e.withBatch(func(*Batch) {}) // any command makes runLoop reconsider the length of the current step
}

// faultState holds the current faults and counts the affected requests.
type faultState struct {
	mu       sync.Mutex
	faults   Faults
	hits     int           // requests hit so far
	replaced chan struct{} // closed when the faults are replaced
}

func (b *faultState) replace(f Faults) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.replaced != nil {
		close(b.replaced)
	}
	b.faults, b.hits, b.replaced = f, 0, make(chan struct{})
}

func (b *faultState) current() Faults {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.faults
}

// takeHit returns the faults for one more request and a channel, closed when the faults are
// replaced.
func (b *faultState) takeHit() (Faults, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.faults.Times > 0 && b.hits == b.faults.Times {
		return Faults{}, nil
	}
	b.hits++
	return b.faults, b.replaced
}
