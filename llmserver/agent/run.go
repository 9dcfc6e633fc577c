package agent

import (
	"sync/atomic"

	"berth/llmserver"
)

// Consume turns the token's reservation into a running request. Without a reservation Consume
// returns llmserver.ErrToken and changes nothing; in particular, a token is consumed at most once.
func (t *Table) Consume(token llmserver.Token) (*Run, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.reservations[token]
	if c == nil || c.queued != nil {
		t.totals.RefusedToken++
		return nil, llmserver.ErrToken
	}
	t.totals.Consumed++
	t.retireToken(c)
	t.addCounts(-1, +1)
	return &Run{table: t, holder: c.holder}, nil
}

// Acquire admits a request without a reservation if a slot is free, which implies an empty queue.
// Otherwise Acquire returns llmserver.ErrFull or llmserver.ErrDraining.
func (t *Table) Acquire() (*Run, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.draining:
		t.totals.RefusedDraining++
		return nil, llmserver.ErrDraining
	case t.reserved+t.running >= t.limit:
		t.totals.RefusedFull++
		return nil, llmserver.ErrFull
	}
	t.totals.Unreserved++
	t.addCounts(0, +1)
	return &Run{table: t}, nil
}

// A Run is a running request.
type Run struct {
	table    *Table
	holder   string
	finished atomic.Bool
}

// Finish takes the request out of the counts. Finish may be called from any goroutine; a second
// call does nothing.
func (r *Run) Finish() {
	if r.finished.Swap(true) {
		return
	}
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	r.table.totals.Finished++
	r.table.freeSlot(r.holder, 0, -1)
}
