package agent

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"berth/llmserver"
)

const (
	// DefaultLease is how long a reservation stands that is not consumed.
	DefaultLease = 3 * time.Second
	// MaxLease is the longest lease that can be asked for.
	MaxLease = 60 * time.Second

	// maxWaits bounds the line. Each ingress waits once, so it is not reached by well-meaning ones.
	maxQueued = 1024
)

// Table counts the slots of one engine. Whoever wants a slot names it by a
// token; each token goes one way through these states:
//
//	waiting ──▶ reserved ──▶ running ──▶ (finished)
//	    │           │   Consume      Finish
//	    └───────────┴──▶ spent
//	      Release, the lease or the wait is over
//
// A token that leaves waiting or reserved is spent and never reserves again.
// Release of one that is not known spends it too, so that a cancel which
// overtakes its reservation wins. One mutex makes every edge one step, above all
// the end of a lease against Consume. A running request is never ended by age.
type Table struct {
	instance string
	limit    int

	mu           sync.Mutex
	seq          uint64 // grows with every change of what a report says
	reserved     int
	running      int
	draining     bool
	reservations map[llmserver.Token]*reservation
	ownOngoing   map[string]int // of what is ongoing, by holder; none is zero
	queue        list.List      // of *claim that wait, the oldest first; empty while a slot is free
	tombstones   tombstones
	drained      chan struct{} // closed when draining and nothing is ongoing
	totals       Totals
}

// claim is a token that waits or is reserved.
type reservation struct {
	token  llmserver.Token
	holder string // who asked; empty if it did not say
	lease  time.Duration
	queued *list.Element // in line; nil once reserved
	done   chan struct{} // closed when it waits no longer
	err    error         // why it has no slot, or not any more; that of a wait is set before ended is closed
	expiry *time.Timer   // ends the lease; nil while it waits
}

// NewTable makes a table of limit slots, all free.
func NewTable(limit int) *Table {
	return &Table{
		instance:     uuid.NewString(),
		limit:        limit,
		reservations: make(map[llmserver.Token]*reservation),
		ownOngoing:   make(map[string]int),
		drained:      make(chan struct{}),
	}
}

// Reserve reserves a slot under the token for the time of the lease. It waits
// in line for a free one for as long as wait says, and not at all if that is
// zero. A token that is reserved already gets the same answer again; its lease
// goes on as it was. One that waits already shares that wait, which ends for all
// who share it when one of them gives up. Errors: llmserver.ErrFull, llmserver.ErrDraining,
// llmserver.ErrToken for a spent token, or that of ctx, and then the token is
// spent. The report is true at the time of the answer.
func (t *Table) Reserve(ctx context.Context, token llmserver.Token, lease, wait time.Duration) (llmserver.Report, error) {
	return t.ReserveFor(ctx, "", token, lease, wait)
}

// ReserveFor is Reserve for a holder that is told how much of what is ongoing is its own. A token
// stays with the holder that asked for it first.
func (t *Table) ReserveFor(ctx context.Context, holder string, token llmserver.Token, lease, wait time.Duration) (llmserver.Report, error) {
	t.mu.Lock()
	c, err := t.findOrReserve(holder, token, min(lease, MaxLease), wait > 0)
	if err != nil || c.queued == nil {
		defer t.mu.Unlock()
		return t.report(), err
	}
	t.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.queued != nil { // nothing came in time
		t.totals.RefusedFull++
		t.dequeue(c, llmserver.ErrFull)
		t.retireToken(c)
	}
	if ctx.Err() != nil { // nobody is left to hear of a slot
		if c.err == nil {
			t.releaseToken(token)
		}
		return t.report(), context.Cause(ctx)
	}
	return t.report(), c.err
}

// claim finds or makes the claim of a token. A new one is reserved if a slot
// is free, else put in line if it is to wait.
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

// grant begins the lease of a claim whose slot is counted as reserved already.
func (t *Table) startLease(c *reservation) {
	t.totals.Reserved++
	c.expiry = time.AfterFunc(c.lease, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.reservations[c.token] == c {
			t.totals.Expired++
			t.retireToken(c)
			t.releaseSlot(c.holder, -1, 0)
		}
	})
}

// endWait takes a claim out of line.
func (t *Table) dequeue(c *reservation, err error) {
	t.queue.Remove(c.queued)
	c.queued, c.err = nil, err
	close(c.done)
}

// spend ends a claim for good.
func (t *Table) retireToken(c *reservation) {
	if c.expiry != nil {
		c.expiry.Stop()
	}
	delete(t.reservations, c.token)
	t.tombstones.insert(c.token)
}

// Release gives back the reservation, or the place in line, that goes by the
// token. A token that is not known is spent from now on; one that runs is not touched.
func (t *Table) Release(token llmserver.Token) llmserver.Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.releaseToken(token)
	return t.report()
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
		c.err = llmserver.ErrToken // who asked may not have heard of the slot yet
		t.retireToken(c)
		t.releaseSlot(c.holder, -1, 0)
	}
}

// Consume turns the reservation that goes by the token into a running request.
// llmserver.ErrToken if there is none; nothing has changed then.
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

// Acquire lets a request run that has no reservation, if a slot is free:
// llmserver.ErrFull or llmserver.ErrDraining if not.
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

// Run is a running request.
type Run struct {
	table    *Table
	holder   string
	finished atomic.Bool
}

// Finish takes the request out of the counts; a second call does nothing.
func (r *Run) Finish() {
	if r.finished.Swap(true) {
		return
	}
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	r.table.totals.Finished++
	r.table.releaseSlot(r.holder, 0, -1)
}

// free gives one unit of a holder back: to the oldest in line, and then it is free at no
// moment, or else to everybody.
func (t *Table) releaseSlot(holder string, reserved, running int) {
	t.addOwn(holder, -1)
	if oldest := t.queue.Front(); oldest != nil {
		c := oldest.Value.(*reservation)
		t.dequeue(c, nil)
		t.addOwn(c.holder, +1)
		t.startLease(c)
		reserved++
	}
	t.addCounts(reserved, running)
	if t.draining && t.reserved+t.running == 0 {
		close(t.drained)
	}
}

// hold counts a unit for its holder, or not any more.
func (t *Table) addOwn(holder string, units int) {
	if holder == "" {
		return
	}
	if t.ownOngoing[holder] += units; t.ownOngoing[holder] == 0 {
		delete(t.ownOngoing, holder)
	}
}

// count is the one place where the counts change.
func (t *Table) addCounts(reserved, running int) {
	t.reserved += reserved
	t.running += running
	t.seq++
	ongoing := t.reserved + t.running
	if t.reserved < 0 || t.running < 0 || ongoing > t.limit {
		panic("BUG: a slot was given back twice, or the capacity passed")
	}
	t.totals.Highest = max(t.totals.Highest, ongoing)
}

// Drain lets nothing new in; what is reserved may still be consumed. Who waits
// in line is told. A second call does nothing.
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
	if t.reserved+t.running == 0 {
		close(t.drained)
	}
}

// Drained is closed when the table drains and nothing is ongoing any more.
func (t *Table) Drained() <-chan struct{} { return t.drained }
