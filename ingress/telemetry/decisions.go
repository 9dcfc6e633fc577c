package telemetry

import (
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"berth/routers"
)

const (
	// maxDecisions is the number of recent decisions kept for operators.
	maxDecisions = 256
	// maxCandidates is the number of replicas kept per decision.
	maxCandidates = 32
	// explainInterval is the budget charged per replica of an explained decision. The actual cost
	// is about a thousandth of that, so explanations stay cheap for any number of requests and
	// replicas. With 8 replicas, every decision is explained up to a rate of 125 per second.
	explainInterval = time.Millisecond
	// explainBurst bounds the budget used at once: enough to explain all kept decisions, with 16
	// replicas each.
	explainBurst = maxDecisions * 16 * explainInterval
)

// decisionRing holds the most recent decisions of all routers, each in place of the oldest one.
// Each entry has a lock of its own, contended only by writers maxDecisions apart.
type decisionRing struct {
	count   atomic.Uint64 // decisions so far
	entries [maxDecisions]decision
	used    atomic.Int64 // the explanation budget is spent up to here, in Unix nanoseconds
}

// decision records the placement of one request.
type decision struct {
	mu              sync.Mutex // guards all fields below
	number          uint64     // from 1; 0 while the entry is empty
	at              time.Time
	requestID       string
	model, adapter  string
	policy          string
	replica         string
	rank            int
	matched, blocks int // blocks of the prompt
	waited          time.Duration

	candidates      []routers.Candidate // empty if the decision was not explained
	preferred, lost string
}

// record stores a decision. It is called on the goroutine of the decision, before the request is
// sent, and holds only the entry's lock.
func (ds *decisionRing) record(by routers.Decision, policy string) {
	now, number := time.Now(), ds.count.Add(1)
	d := &ds.entries[number%maxDecisions]
	d.mu.Lock()
	defer d.mu.Unlock()
	d.number, d.at, d.policy = number, now, policy
	d.requestID, d.model, d.adapter = by.Payload.RequestID, by.Payload.Model, by.Payload.Adapter
	d.replica, d.rank, d.matched, d.blocks = by.Replica.ID(), by.Rank, by.Matched, len(by.Payload.Blocks)
	d.waited = by.Payload.Waited
	d.candidates, d.preferred, d.lost = d.candidates[:0], "", ""
	if !ds.spendExplanation(now, by.Members()) {
		return
	}
	all, preferred, lost := by.Explain(d.candidates, maxCandidates)
	d.candidates, d.lost = all, lost
	if preferred != nil {
		d.preferred = preferred.ID()
	}
}

// spendExplanation reports whether a decision among that many replicas may be explained now. If so,
// the cost has been taken out of the budget.
func (ds *decisionRing) spendExplanation(now time.Time, members int) bool {
	for {
		used := ds.used.Load()
		next := max(used, now.UnixNano()) + int64(members)*int64(explainInterval)
		if next > now.Add(explainBurst).UnixNano() {
			return false
		}
		if ds.used.CompareAndSwap(used, next) {
			return true
		}
	}
}

// decisionView is the JSON form of a decision.
type decisionView struct {
	RequestID  string          `json:"request_id"`
	Time       time.Time       `json:"time"`
	Model      string          `json:"model"`
	Adapter    string          `json:"adapter,omitempty"`
	Policy     string          `json:"policy"`
	Replica    string          `json:"replica"`
	Rank       int             `json:"rank"`
	Match      *float64        `json:"match"` // null if the policy does not rank by prefix
	WaitedMS   float64         `json:"waited_ms"`
	Preferred  string          `json:"preferred,omitempty"` // the replica ranked above the chosen one
	Lost       string          `json:"lost,omitempty"`      // the reason against the preferred replica
	Candidates []candidateView `json:"candidates"`          // null if the decision was not explained
}

type candidateView struct {
	Replica string   `json:"replica"`
	Rank    int      `json:"rank"` // 0: not ranked
	Load    int      `json:"load"`
	Match   *float64 `json:"match"`
	State   string   `json:"state"`
}

// ServeDecisions lists recent decisions, the newest first; ?n= limits their number.
// Options.Decisions must be set.
func (t *Telemetry) ServeDecisions(w http.ResponseWriter, r *http.Request) {
	n := maxDecisions
	if limit := r.URL.Query().Get("n"); limit != "" {
		var err error
		if n, err = strconv.Atoi(limit); err != nil || n < 1 {
			http.Error(w, "n must be a whole number of at least 1", http.StatusBadRequest)
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]any{"decisions": t.decisions.newest(n)})
}

// newest returns up to n decisions, the newest first.
func (ds *decisionRing) newest(n int) []decisionView {
	views := []decisionView{}
	count := ds.count.Load()
	for number := count; number > 0 && number+maxDecisions > count && len(views) < n; number-- {
		d := &ds.entries[number%maxDecisions]
		d.mu.Lock()
		if d.number == number { // else not written yet, or overwritten already
			views = append(views, d.snapshot())
		}
		d.mu.Unlock()
	}
	return views
}

// snapshot returns a copy for operators. The caller holds the lock.
func (d *decision) snapshot() decisionView {
	v := decisionView{
		RequestID: d.requestID, Time: d.at.UTC(), Model: d.model, Adapter: d.adapter, Policy: d.policy, Replica: d.replica,
		Rank: d.rank, Match: ratio(d.matched, d.blocks), WaitedMS: milliseconds(d.waited), Preferred: d.preferred, Lost: d.lost,
	}
	for _, c := range d.candidates {
		v.Candidates = append(v.Candidates, candidateView{c.Replica.ID(), c.Rank, c.Load, ratio(c.Matched, d.blocks), c.State})
	}
	return v
}

// ratio returns matched over total, or nil if total is 0.
func ratio(matched, total int) *float64 {
	if total == 0 {
		return nil
	}
	r := float64(matched) / float64(total)
	return &r
}
