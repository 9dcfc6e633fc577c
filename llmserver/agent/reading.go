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
type Reading struct {
	llmserver.Report
	Reserved, Running, Waiting int
	Totals
}

// Read reads the table.
func (t *Table) Read() Reading {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Reading{t.report(), t.reserved, t.running, t.line.Len(), t.totals}
}

// Report says how full the engine is.
func (t *Table) Report() llmserver.Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.report()
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
