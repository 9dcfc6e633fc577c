package llmserver

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"
)

// Report is what a replica that counts its own slots says of them. The zero
// Report says nothing.
type Report struct {
	Ongoing  int    // reserved and running, of all ingresses
	Limit    int    // its capacity
	Draining bool   // it takes nothing new
	Instance string // the process; another one knows nothing of the slots of this one
	Seq      uint64 // of the last change; a report with a lower one is older
	Own      int    // of Ongoing, that of the ingress which gets the report; only the agent can know it
}

// freshness is how long a report that leaves no room keeps requests from being
// tried all the same: what the other ingresses give back is told to them, not to this one.
const reportTTL = time.Second

// view is what is known of a replica that counts its own slots. Its capacity and the requests of
// other ingresses are as it reported last; this process's own are counted by the gate, so that its own
// edges since the report count at once, in whatever order reports come.
type remoteUsage struct {
	others     atomic.Int64 // ongoing for other ingresses
	reportedAt atomic.Int64 // when that was reported, by monotonic time
	restarted  atomic.Bool  // another process has answered

	mu   sync.Mutex
	last Report
}

// learn folds a report in. One that is older than what is known is ignored, and one
// of another process tells that this replica is no more.
func (r *Replica) applyReport(report Report) {
	if report.Instance == "" {
		return
	}
	v := &r.remote
	v.mu.Lock()
	switch {
	case v.last.Instance != "" && v.last.Instance != report.Instance:
		v.mu.Unlock()
		if !v.restarted.Swap(true) && r.events.Restarted != nil {
			r.events.Restarted(r.Endpoint())
		}
		return
	case report.Seq < v.last.Seq:
		v.mu.Unlock()
		return
	}
	told := v.last.Limit == 0 && report.Limit > 0 // a process does not change its mind
	if report.Limit == 0 {
		report.Limit = v.last.Limit // not every report tells it
	}
	v.others.Store(int64(max(0, report.Ongoing-report.Own)))
	v.reportedAt.Store(int64(monotonic()))
	v.last = report
	v.mu.Unlock()
	if !told {
		return
	}
	r.gate.setLimit(report.Limit)
	if e := r.endpoint.Load(); e.Limit != report.Limit && r.events.CapacityDiffers != nil {
		r.events.CapacityDiffers(e.ID, e.Limit, report.Limit)
	}
	r.health.notify() // who waits may be served now
}

// recap takes over a configured capacity, unless the replica has reported its own.
func (r *Replica) setConfiguredLimit(limit int) {
	r.remote.mu.Lock()
	defer r.remote.mu.Unlock()
	r.gate.setLimit(cmp.Or(r.remote.last.Limit, limit))
}

// fresh tells whether the last report is to be believed when it leaves no room.
func (v *remoteUsage) isFresh() bool {
	return monotonic()-time.Duration(v.reportedAt.Load()) < reportTTL
}
