package simulated

import (
	"maps"
	"sync"
)

// Stats is what an engine did since it started or was last reset. At every moment
// Requests = InFlight + Completed + Aborted + Refused + Rejected.
type Stats struct {
	Requests    int64 `json:"requests"`      // that asked for work; models, health and metrics are none
	Completed   int64 `json:"completed"`     // answered whole
	Aborted     int64 `json:"aborted"`       // broken off: by the client, a fault or Close
	Refused     int64 `json:"refused"`       // turned away: MaxOngoing, or a fault with a status
	Rejected    int64 `json:"rejected"`      // answered with an error of the request's own making
	InFlight    int64 `json:"in_flight"`     // now
	MaxInFlight int64 `json:"max_in_flight"` // the high-water mark of InFlight

	PromptTokens    int64 `json:"prompt_tokens"`    // of prompts completely computed
	CachedTokens    int64 `json:"cached_tokens"`    // of them, those found in the cache
	GeneratedTokens int64 `json:"generated_tokens"` // by all requests
	WastedTokens    int64 `json:"wasted_tokens"`    // by those aborted

	Connections int64 `json:"connections"` // accepted by Listen
}

// Stats reads the counters.
func (e *Engine) Stats() Stats {
	totals := e.totals()
	s, _ := e.counts.snapshot()
	s.PromptTokens, s.CachedTokens, s.GeneratedTokens = totals.PromptTokens, totals.CachedTokens, totals.GeneratedTokens
	s.Connections = e.connections.Load()
	return s
}

func (e *Engine) totals() (t Totals) {
	if !e.withBatch(func(b *Batch) { t = b.Totals() }) {
		t = e.batch.Totals() // nobody changes it any more
	}
	return t
}

// Reset makes the engine like new for the requests to come: counters at zero, cache empty, no faults. Requests in flight go on and count as requests.
func (e *Engine) Reset() {
	e.SetFaults(Faults{})
	e.withBatch(func(b *Batch) {
		b.cache.Clear()
		b.totals = Totals{}
	})
	e.connections.Store(0)
	e.counts.reset()
}

// ledger counts requests by their fate: each enters once and leaves once, or is refused.
type requestCounts struct {
	mu       sync.Mutex
	stats    Stats
	finished map[string]int64 // prompts by finish reason
}

type outcome int

const (
	aborted outcome = iota
	completed
	rejected
)

// enter counts a request in, unless limit > 0 are in flight already.
func (l *requestCounts) admit(limit int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Requests++
	if limit > 0 && l.stats.InFlight >= int64(limit) {
		l.stats.Refused++
		return false
	}
	l.stats.InFlight++
	l.stats.MaxInFlight = max(l.stats.MaxInFlight, l.stats.InFlight)
	return true
}

// refuse counts a request that is turned away whatever the load.
func (l *requestCounts) countRefused() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Requests++
	l.stats.Refused++
}

// leave counts a request out, with the prompts that finished for a reason and the tokens generated in vain.
func (l *requestCounts) finish(f outcome, reason string, prompts, wasted int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.InFlight--
	switch f {
	case completed:
		l.stats.Completed++
	case rejected:
		l.stats.Rejected++
	default:
		l.stats.Aborted++
	}
	l.stats.WastedTokens += int64(wasted)
	if prompts > 0 {
		if l.finished == nil {
			l.finished = map[string]int64{}
		}
		l.finished[reason] += int64(prompts)
	}
}

func (l *requestCounts) snapshot() (Stats, map[string]int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats, maps.Clone(l.finished)
}

func (l *requestCounts) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.stats.InFlight
	l.stats = Stats{Requests: n, InFlight: n, MaxInFlight: n}
	l.finished = nil
}
