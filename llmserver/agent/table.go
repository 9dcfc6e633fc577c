package agent

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"berth/llmserver"
)

const (
	// DefaultLease is the lifetime of an unconsumed reservation.
	DefaultLease = 3 * time.Second
	// MaxLease is the longest lease; longer ones are clamped.
	MaxLease = 60 * time.Second

	// maxQueued bounds the queue against a faulty ingress. Each ingress keeps at most one
	// reservation queued.
	maxQueued = 1024
)

// A Table counts the slots of one engine. Callers name each slot by a token, which passes through
// these states once:
//
//	waiting ──▶ reserved ──▶ running ──▶ (finished)
//	    │           │   Consume      Finish
//	    └───────────┴──▶ spent
//	      Release, the lease or the wait is over
//
// A token that leaves waiting or reserved is spent and never reserves again. Release of an unknown
// token spends the token, too, so a cancel overtaking its reservation wins. A running request is
// never ended by age.
//
// One mutex makes every edge a single step. Of two events competing for a token, such as the end of
// the lease and Consume, the one that locks first wins, and the other one finds the token spent.
// The mutex is held for no I/O and no wait. All exported methods may be called from any goroutine;
// only Reserve and ReserveFor block.
type Table struct {
	instance string
	limit    int

	mu           sync.Mutex
	seq          uint64 // incremented with every change visible in a report
	reserved     int
	running      int
	draining     bool
	reservations map[llmserver.Token]*reservation // waiting or reserved
	ownOngoing   map[string]int                   // ongoing per holder, without zeros and unnamed holders
	queue        list.List                        // waiting *reservations, the oldest first; empty while a slot is free
	tombstones   tombstones
	drained      chan struct{} // closed when draining with nothing ongoing
	totals       Totals
}

// A reservation is a waiting or reserved token.
type reservation struct {
	token  llmserver.Token
	holder string // the name of the ingress; empty if none was sent
	lease  time.Duration
	queued *list.Element // in Table.queue; nil once reserved
	done   chan struct{} // closed when the wait has ended
	err    error         // why the wait brought no slot, or the slot was released; set before done is closed
	expiry *time.Timer   // ends the lease; nil while waiting
}

// NewTable returns a table of limit free slots.
func NewTable(limit int) *Table {
	return &Table{
		instance:     uuid.NewString(),
		limit:        limit,
		reservations: make(map[llmserver.Token]*reservation),
		ownOngoing:   make(map[string]int),
		drained:      make(chan struct{}),
	}
}

// Reserve reserves a slot under the token for the duration of the lease. If none is free, the call
// queues for at most wait, or returns at once if wait is zero.
//
// A repeated call is safe, so a lost reply can be asked for again. If the token is reserved, the
// call returns the same result and the lease continues. If the token is waiting, the call shares
// the wait, which ends for all callers when one of them gives up.
//
// Errors: llmserver.ErrFull; llmserver.ErrDraining; llmserver.ErrToken for a spent token; or the
// cause of the context's end, after which the token is spent. The report is of the moment when
// Reserve returns.
func (t *Table) Reserve(ctx context.Context, token llmserver.Token, lease, wait time.Duration) (llmserver.Report, error) {
	return t.ReserveFor(ctx, "", token, lease, wait)
}

// ReserveFor is Reserve for a named holder; ReportTo returns the holder's share of the ongoing
// requests. A token stays with the first holder to send the token.
func (t *Table) ReserveFor(ctx context.Context, holder string, token llmserver.Token, lease, wait time.Duration) (llmserver.Report, error) {
	t.mu.Lock()
	c, err := t.findOrReserve(holder, token, min(lease, MaxLease), wait > 0)
	if err != nil || c.queued == nil {
		defer t.mu.Unlock()
		return t.reportTo(""), err
	}
	t.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
	case <-ctx.Done():
	}
	// The state under the mutex decides, not the chosen case: a slot may have been granted just
	// when the timer fired or the context ended.
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.queued != nil { // still waiting: timed out or gave up
		t.totals.RefusedFull++
		t.dequeue(c, llmserver.ErrFull)
		t.retireToken(c)
	}
	if ctx.Err() != nil { // the caller is gone, so a granted slot goes back
		if c.err == nil {
			t.releaseToken(token)
		}
		return t.reportTo(""), context.Cause(ctx)
	}
	return t.reportTo(""), c.err
}

// findOrReserve returns the token's reservation or makes one: reserved if a slot is free, otherwise
// queued if wait is set. A slot is free only while the queue is empty, so a new reservation never
// overtakes a queued one.
func (t *Table) findOrReserve(holder string, token llmserver.Token, lease time.Duration, wait bool) (*reservation, error) {
	if c := t.reservations[token]; c != nil {
		return c, nil
	}
	c := &reservation{token: token, holder: holder, lease: lease}
	switch {
	case t.tombstones.contains(token):
		t.totals.RefusedToken++
		return nil, llmserver.ErrToken
	case t.draining:
		t.totals.RefusedDraining++
		return nil, llmserver.ErrDraining
	case t.reserved+t.running < t.limit:
		t.addOwn(holder, +1)
		t.addCounts(+1, 0)
		t.startLease(c)
	case wait && t.queue.Len() < maxQueued:
		c.done = make(chan struct{})
		c.queued = t.queue.PushBack(c)
	default:
		t.totals.RefusedFull++
		return nil, llmserver.ErrFull
	}
	t.reservations[token] = c
	return c, nil
}

// startLease starts the lease of a reservation already counted as reserved. A timer that fires
// after the reservation was consumed or released finds another reservation or none under the token,
// and does nothing.
func (t *Table) startLease(c *reservation) {
	t.totals.Reserved++
	c.expiry = time.AfterFunc(c.lease, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.reservations[c.token] == c {
			t.totals.Expired++
			t.retireToken(c)
			t.freeSlot(c.holder, -1, 0)
		}
	})
}

// dequeue removes a reservation from the queue and wakes its callers with err.
func (t *Table) dequeue(c *reservation, err error) {
	t.queue.Remove(c.queued)
	c.queued, c.err = nil, err
	close(c.done)
}

// retireToken removes a reservation for good: its token is spent from now on.
func (t *Table) retireToken(c *reservation) {
	if c.expiry != nil {
		c.expiry.Stop()
	}
	delete(t.reservations, c.token)
	t.tombstones.insert(c.token)
}

// Release ends the token's reservation, whether it is waiting or reserved. An unknown token is
// spent from now on; a running request is not affected. A second call does nothing.
func (t *Table) Release(token llmserver.Token) llmserver.Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.releaseToken(token)
	return t.reportTo("")
}

func (t *Table) releaseToken(token llmserver.Token) {
	c := t.reservations[token]
	switch {
	case c == nil:
		t.tombstones.insert(token)
	case c.queued != nil:
		t.dequeue(c, llmserver.ErrToken)
		t.retireToken(c)
	default:
		t.totals.Released++
		c.err = llmserver.ErrToken // for a ReserveFor that was granted the slot but has not returned
		t.retireToken(c)
		t.freeSlot(c.holder, -1, 0)
	}
}

// freeSlot takes one slot from its holder, with reserved or running as -1. The oldest queued
// reservation gets the slot in the same step, so the slot is free at no moment; only with an empty
// queue does the slot become free.
func (t *Table) freeSlot(holder string, reserved, running int) {
	t.addOwn(holder, -1)
	if oldest := t.queue.Front(); oldest != nil {
		c := oldest.Value.(*reservation)
		t.dequeue(c, nil)
		t.addOwn(c.holder, +1)
		t.startLease(c)
		reserved++
	}
	t.addCounts(reserved, running)
	t.closeIfDrained()
}

// addOwn adds slots to the holder's share of the ongoing ones.
func (t *Table) addOwn(holder string, slots int) {
	if holder == "" {
		return
	}
	if t.ownOngoing[holder] += slots; t.ownOngoing[holder] == 0 {
		delete(t.ownOngoing, holder)
	}
}

// addCounts is the only function that changes the counts. addCounts panics if the capacity is
// exceeded or a count is negative, either of which is a bug in this file.
func (t *Table) addCounts(reserved, running int) {
	t.reserved += reserved
	t.running += running
	t.seq++
	ongoing := t.reserved + t.running
	if t.reserved < 0 || t.running < 0 || ongoing > t.limit {
		panic("BUG: slot released twice, or capacity exceeded")
	}
	t.totals.Highest = max(t.totals.Highest, ongoing)
}

// Drain stops admissions and ends all waits with llmserver.ErrDraining. Reservations may still be
// consumed. A second call does nothing.
func (t *Table) Drain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.draining {
		return
	}
	t.draining = true
	t.seq++
	for t.queue.Len() > 0 {
		c := t.queue.Front().Value.(*reservation)
		t.totals.RefusedDraining++
		t.dequeue(c, llmserver.ErrDraining)
		t.retireToken(c)
	}
	t.closeIfDrained()
}

// closeIfDrained closes drained when the table is draining and its last slot is released. The close
// happens at most once per table: a draining table admits nothing.
func (t *Table) closeIfDrained() {
	if t.draining && t.reserved+t.running == 0 {
		close(t.drained)
	}
}

// Drained returns a channel that is closed when the table is draining and nothing is ongoing.
func (t *Table) Drained() <-chan struct{} { return t.drained }
