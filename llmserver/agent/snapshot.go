package agent

import "berth/llmserver"

// Totals count what has happened so far.
type Totals struct {
	Reserved, RefusedFull, RefusedDraining, RefusedToken uint64 // asked for, by outcome
	Consumed, Released, Expired                          uint64 // reservations, by how they ended
	Unreserved                                           uint64 // requests let in without a reservation
	Finished                                             uint64 // requests
	Highest                                              int    // most that was ongoing at once
}

// Reading is everything that a table tells of itself at one moment.
type Snapshot struct {
	llmserver.Report
	Reserved, Running, Waiting int
	Totals
}

// Read reads the table.
func (t *Table) Read() Snapshot { return t.ReadFor("") }

// ReadFor reads the table for a holder.
func (t *Table) ReadFor(holder string) Snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Snapshot{t.reportTo(holder), t.reserved, t.running, t.queue.Len(), t.totals}
}

// Report says how full the engine is.
func (t *Table) Report() llmserver.Report { return t.ReportTo("") }

// ReportTo says to a holder how full the engine is, and how much of that is the holder's.
func (t *Table) ReportTo(holder string) llmserver.Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reportTo(holder)
}

func (t *Table) reportTo(holder string) llmserver.Report {
	r := t.report()
	r.Own = t.ownOngoing[holder]
	return r
}

func (t *Table) report() llmserver.Report {
	return llmserver.Report{
		Ongoing:  t.reserved + t.running,
		Limit:    t.limit,
		Draining: t.draining,
		Instance: t.instance,
		Seq:      t.seq,
	}
}
