package ingress

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
	// keptDecisions is how many of the last decisions operators can look at.
	keptDecisions = 256
	// keptCandidates is how many replicas are kept of each.
	keptCandidates = 32
	// explainEvery is how much time each replica that is looked at to explain a decision uses up. To look takes about a
	// thousandth of that, so explanations cost next to nothing however many requests and replicas there
	// are. With 8 replicas that is every decision up to 125 a second.
	explainEvery = time.Millisecond
	// explainAhead is how much may be used up at once: for all that are kept, with 16 replicas.
	explainAhead = keptDecisions * 16 * explainEvery
)

// decisions are the last ones that routers made, the newest in place of the oldest. Each has a lock of its own, which
// two requests want only if as many as are kept come in between.
type decisions struct {
	made atomic.Uint64
	kept [keptDecisions]decision
	used atomic.Int64 // the time, in Unix nanoseconds, up to which explanations are used up
}

// decision is how one request came by its slot.
type decision struct {
	mu             sync.Mutex // guards all below
	number         uint64     // from 1; 0 while there is none
	at             time.Time
	requestID      string
	model, adapter string
	policy         string
	replica        string
	rank           int
	matched, asked int // blocks
	waited         time.Duration

	candidates      []routers.Candidate // empty if it was not explained
	preferred, lost string
}

// note keeps a decision in place of the oldest.
func (ds *decisions) note(by routers.Decision, policy string) {
	now, number := time.Now(), ds.made.Add(1)
	d := &ds.kept[number%keptDecisions]
	d.mu.Lock()
	defer d.mu.Unlock()
	d.number, d.at, d.policy = number, now, policy
	d.requestID, d.model, d.adapter = by.Payload.RequestID, by.Payload.Model, by.Payload.Adapter
	d.replica, d.rank, d.matched, d.asked = by.Replica.ID(), by.Rank, by.Matched, len(by.Payload.Blocks)
	d.waited = by.Payload.Waited
	d.candidates, d.preferred, d.lost = d.candidates[:0], "", ""
	if !ds.mayExplain(now, by.Members()) {
		return
	}
	all, preferred, lost := by.Explain(d.candidates, keptCandidates)
	d.candidates, d.lost = all, lost
	if preferred != nil {
		d.preferred = preferred.ID()
	}
}

// mayExplain tells whether a decision among so many replicas may be explained now, and counts it as done.
func (ds *decisions) mayExplain(now time.Time, members int) bool {
	for {
		used := ds.used.Load()
		next := max(used, now.UnixNano()) + int64(members)*int64(explainEvery)
		if next > now.Add(explainAhead).UnixNano() {
			return false
		}
		if ds.used.CompareAndSwap(used, next) {
			return true
		}
	}
}

// shownDecision is a decision as operators see it.
type shownDecision struct {
	RequestID  string           `json:"request_id"`
	Time       time.Time        `json:"time"`
	Model      string           `json:"model"`
	Adapter    string           `json:"adapter,omitempty"`
	Policy     string           `json:"policy"`
	Replica    string           `json:"replica"`
	Rank       int              `json:"rank"`
	Match      *float64         `json:"match"` // null if the policy did not look
	WaitedMS   float64          `json:"waited_ms"`
	Preferred  string           `json:"preferred,omitempty"` // whom the policy would rather have had
	Lost       string           `json:"lost,omitempty"`      // why that was not to be
	Candidates []shownCandidate `json:"candidates"`          // null if there were too many decisions to explain each
}

type shownCandidate struct {
	Replica string   `json:"replica"`
	Rank    int      `json:"rank"` // 0: not ranked
	Load    int      `json:"load"`
	Match   *float64 `json:"match"`
	State   string   `json:"state"`
}

// listDecisions lists the last n decisions, the newest first.
func (s *Server) listDecisions(w http.ResponseWriter, r *http.Request) {
	n := keptDecisions
	if asked := r.URL.Query().Get("n"); asked != "" {
		var err error
		if n, err = strconv.Atoi(asked); err != nil || n < 1 {
			http.Error(w, "n must be a whole number of at least 1", http.StatusBadRequest)
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]any{"decisions": s.registry.decisions.last(n)})
}

// last shows the newest n.
func (ds *decisions) last(n int) []shownDecision {
	shown := []shownDecision{}
	made := ds.made.Load()
	for number := made; number > 0 && number+keptDecisions > made && len(shown) < n; number-- {
		d := &ds.kept[number%keptDecisions]
		d.mu.Lock()
		if d.number == number { // else it is being written, or is a newer one already
			shown = append(shown, d.show())
		}
		d.mu.Unlock()
	}
	return shown
}

// show is a copy for operators. The lock is held.
func (d *decision) show() shownDecision {
	s := shownDecision{
		RequestID: d.requestID, Time: d.at.UTC(), Model: d.model, Adapter: d.adapter, Policy: d.policy, Replica: d.replica,
		Rank: d.rank, Match: ratio(d.matched, d.asked), WaitedMS: milliseconds(d.waited), Preferred: d.preferred, Lost: d.lost,
	}
	for _, c := range d.candidates {
		s.Candidates = append(s.Candidates, shownCandidate{c.Replica.ID(), c.Rank, c.Load, ratio(c.Matched, d.asked), c.State})
	}
	return s
}

// show tells the client how its replica was chosen.
func (x *proxyRequest) show(h http.Header, sel *routers.Selection) {
	h["X-Berth-Replica"] = []string{sel.Replica().ID()}
	h["X-Berth-Policy"] = []string{x.model.config.Router.Class}
	h["X-Berth-Rank"] = []string{strconv.Itoa(sel.Rank())}
	delete(h, "X-Berth-Prefix-Match") // of another berth behind this one
	if match := ratio(sel.Matched(), len(x.payload.Blocks)); match != nil {
		h["X-Berth-Prefix-Match"] = []string{strconv.FormatFloat(*match, 'f', 2, 64)}
	}
}

// ratio is matched over asked; nil if nothing was asked.
func ratio(matched, asked int) *float64 {
	if asked == 0 {
		return nil
	}
	r := float64(matched) / float64(asked)
	return &r
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
