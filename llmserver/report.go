package llmserver

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"
)

// A Report is the state of a replica that counts its own slots, as sent by the agent. The zero
// Report carries no information.
type Report struct {
	Ongoing  int    // reserved and running, for all ingresses
	Limit    int    // the capacity; zero if not included
	Draining bool   // the replica admits nothing new
	Instance string // the process; another process knows no slot of this one
	Seq      uint64 // of the last change; a report with a lower one is older
	Own      int    // the receiving ingress's part of Ongoing
}

// reportTTL is how long a report of a full replica keeps requests away. The other ingresses release
// their slots at the agent, which does not push reports, so an old one must not be trusted.
const reportTTL = time.Second

// remoteUsage is the reported state of a replica that counts its own slots: the capacity and the
// requests of other ingresses. The gate alone counts this process's own requests, so they are right
// at once, in whatever order reports arrive. Only the agent can split the count (Report.Own):
// recent reservations and releases of this process may or may not have reached the agent.
type remoteUsage struct {
	// Written under mu, read without it on the request path.
	others     atomic.Int64 // ongoing requests of other ingresses
	reportedAt atomic.Int64 // when others was reported, monotonic
	restarted  atomic.Bool  // another process reported; never reset

	mu   sync.Mutex
	last Report
}

// applyReport merges a report. Reports arrive in any order, from any goroutine; those older than
// the last are ignored. A report of another process means a restart: nothing changes here, and
// Events.Restarted is called for the first such report. applyReport does not block, and calls the
// events and the observer with no lock held.
func (r *Replica) applyReport(report Report) {
	if report.Instance == "" {
		return
	}
	current, limitKnown := r.remote.mergeReport(report)
	if !current && !r.remote.restarted.Swap(true) && r.events.Restarted != nil {
		r.events.Restarted(r.Endpoint())
	}
	if !limitKnown {
		return
	}
	r.gate.setLimit(report.Limit)
	if e := r.endpoint.Load(); e.Limit != report.Limit && r.events.CapacityDiffers != nil {
		r.events.CapacityDiffers(e.ID, e.Limit, report.Limit)
	}
	r.health.notifyObserver() // the capacity may have grown
}

// mergeReport stores a report unless outdated, and returns whether the report comes from the known
// process, and whether the report is the first one with a capacity; a process never changes its
// capacity.
func (u *remoteUsage) mergeReport(report Report) (current, limitKnown bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.last.Instance != "" && u.last.Instance != report.Instance {
		return false, false
	}
	if report.Seq < u.last.Seq {
		return true, false
	}
	limitKnown = u.last.Limit == 0 && report.Limit > 0
	report.Limit = cmp.Or(report.Limit, u.last.Limit) // reports in response headers have none
	u.others.Store(int64(max(0, report.Ongoing-report.Own)))
	u.reportedAt.Store(int64(monotonic()))
	u.last = report
	return true, limitKnown
}

// setConfiguredLimit applies the capacity from the configuration, unless the replica has reported
// one. The mutex orders the call with mergeReport: a reload racing with the first report must not
// overwrite the reported capacity.
func (r *Replica) setConfiguredLimit(limit int) {
	r.remote.mu.Lock()
	defer r.remote.mu.Unlock()
	r.gate.setLimit(cmp.Or(r.remote.last.Limit, limit))
}

// isFresh reports whether the last report is recent enough to keep requests away.
func (u *remoteUsage) isFresh() bool {
	return monotonic()-time.Duration(u.reportedAt.Load()) < reportTTL
}
