package simulated

import (
	"maps"
	"sync"
)

// Stats are an engine's counters since the start or the last reset. At every moment
// Requests = InFlight + Completed + Aborted + Refused + Rejected.
type Stats struct {
	Requests    int64 `json:"requests"`      // inference requests; models, health and metrics are not counted
	Completed   int64 `json:"completed"`     // complete responses
	Aborted     int64 `json:"aborted"`       // by the client, a fault or Close
	Refused     int64 `json:"refused"`       // by MaxOngoing, or by a fault with a status
	Rejected    int64 `json:"rejected"`      // invalid requests
	InFlight    int64 `json:"in_flight"`     // now
	MaxInFlight int64 `json:"max_in_flight"` // the high-water mark of InFlight

	PromptTokens    int64 `json:"prompt_tokens"`    // of prompts completely computed
	CachedTokens    int64 `json:"cached_tokens"`    // the part of them found in the cache
	GeneratedTokens int64 `json:"generated_tokens"` // by all requests
	WastedTokens    int64 `json:"wasted_tokens"`    // by aborted requests

	Connections int64 `json:"connections"` // accepted by Listen
}

// Stats returns the counters.
func (e *Engine) Stats() Stats {
	totals := e.totals()
	s, _ := e.counts.snapshot()
	s.PromptTokens, s.CachedTokens, s.GeneratedTokens = totals.PromptTokens, totals.CachedTokens, totals.GeneratedTokens
	s.Connections = e.connections.Load()
	return s
}

func (e *Engine) totals() (t Totals) {
	if !e.withBatch(func(b *Batch) { t = b.Totals() }) {
		t = e.batch.Totals() // closed: the batch does not change any more
	}
	return t
}

// Reset zeroes the counters, empties the cache and removes all faults. Requests in flight continue
// and count as requests.
func (e *Engine) Reset() {
	e.SetFaults(Faults{})
	e.withBatch(func(b *Batch) {
		b.cache.Clear()
		b.totals = Totals{}
	})
	e.connections.Store(0)
	e.counts.reset()
}

// requestCounts counts requests by outcome. Each request is either admitted and finished, once
// each, or refused.
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

// admit counts a request as in flight, or as refused if limit > 0 requests are in flight already.
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

// countRefused counts a request refused regardless of the load.
func (l *requestCounts) countRefused() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Requests++
	l.stats.Refused++
}

// finish ends a request, with the number of prompts for a finish reason and of wasted tokens.
func (l *requestCounts) finish(o outcome, reason string, prompts, wasted int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.InFlight--
	switch o {
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
