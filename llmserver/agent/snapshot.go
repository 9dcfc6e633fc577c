package agent

import "berth/llmserver"

// Totals are a table's counters since NewTable.
type Totals struct {
	Reserved, RefusedFull, RefusedDraining, RefusedToken uint64 // reservations requested, by outcome
	Consumed, Released, Expired                          uint64 // reservations ended, by cause
	Unreserved                                           uint64 // requests admitted without a reservation
	Finished                                             uint64 // requests
	Highest                                              int    // maximum of ongoing
}

// A Snapshot is the whole visible state of a table at one moment.
type Snapshot struct {
	llmserver.Report
	Reserved, Running, Waiting int
	Totals
}

// Read returns a snapshot of the table, with Own zero.
func (t *Table) Read() Snapshot { return t.ReadFor("") }

// ReadFor returns a snapshot, with the holder's part of Ongoing as Own.
func (t *Table) ReadFor(holder string) Snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Snapshot{t.reportTo(holder), t.reserved, t.running, t.queue.Len(), t.totals}
}

// Report returns the current counts, with Own zero.
func (t *Table) Report() llmserver.Report { return t.ReportTo("") }

// ReportTo returns the current counts, with the holder's part of Ongoing as Own.
func (t *Table) ReportTo(holder string) llmserver.Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reportTo(holder)
}

// reportTo is ReportTo for callers that hold the mutex.
func (t *Table) reportTo(holder string) llmserver.Report {
	return llmserver.Report{
		Ongoing:  t.reserved + t.running,
		Limit:    t.limit,
		Draining: t.draining,
		Instance: t.instance,
		Seq:      t.seq,
		Own:      t.ownOngoing[holder], // no entry for ""
	}
}
