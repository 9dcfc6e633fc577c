package llmserver

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// A StateChange is a change of Replica.State.
type StateChange struct {
	Replica  *Replica
	From, To string        // of States, and different
	Reason   string        // the cause, for operators
	At       time.Time     // when To began
	Lasted   time.Duration // how long From lasted
}

// recentChanges is the number of changes that a replica remembers.
const recentChanges = 8

// stateReports remembers the state that was reported last. Every change of the state is followed by
// a call of Replica.reportState, which reads the state under mu. So of racing calls the last one
// finds the last state, whatever the others have found, and none reports a state twice.
//
// Events are delivered in order and with no lock held, by one goroutine at a time: a call that
// finds another one delivering leaves its event to that one.
type stateReports struct {
	mu         sync.Mutex
	state      string
	since      time.Duration // monotonic
	recent     []StateChange // the oldest first
	pending    []StateChange // to deliver
	delivering bool
}

// Status is the state of a replica for operators.
type Status struct {
	State  string // one of States
	Since  time.Time
	Reason string        // of the state; "" while serving
	Recent []StateChange // the latest changes, the oldest first
}

// Status returns the replica's state and its latest changes.
func (r *Replica) Status() Status {
	r.reportState()
	t := &r.states
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Status{State: t.state, Since: time.Now().Add(t.since - monotonic()), Recent: slices.Clone(t.recent)}
	if s.State != "serving" {
		s.Reason = r.stateReason("", s.State)
	}
	return s
}

// reportState calls Events.StateChanged if the state differs from the one reported last. It is
// called with no lock held, after every change and when the time of an ejection is over.
func (r *Replica) reportState() {
	t := &r.states
	t.mu.Lock()
	defer t.mu.Unlock()
	if to := r.State(); to != t.state {
		now := monotonic()
		change := StateChange{r, t.state, to, r.stateReason(t.state, to), time.Now(), now - t.since}
		t.state, t.since = to, now
		t.recent = append(t.recent[max(0, len(t.recent)+1-recentChanges):], change)
		if r.events.StateChanged != nil {
			t.pending = append(t.pending, change)
		}
	}
	if t.delivering {
		return
	}
	t.delivering = true
	for len(t.pending) > 0 {
		next := t.pending[0]
		t.pending = t.pending[1:]
		t.mu.Unlock()
		r.events.StateChanged(next)
		t.mu.Lock()
	}
	t.delivering = false
}

// stateReason returns the reason for the state to, which follows the state from.
func (r *Replica) stateReason(from, to string) string {
	switch {
	case to == "draining":
		if err := r.gate.counts().admissionError(); err != nil {
			return err.Error() // whatever else is wrong
		}
	case to == "half_open":
		return "a request is admitted as a trial"
	case to == "ejected":
		// DownReason is empty if the ejection is bypassed.
		if err := r.circuit.reason.Load(); err != nil {
			return cmp.Or(r.DownReason(), "ejected: "+(*err).Error())
		}
	case to == "serving" && from == "down":
		return "a health check succeeded"
	case to == "serving" && from == "draining":
		return "the drain has ended"
	case to == "serving":
		return "a request succeeded"
	}
	return r.DownReason()
}
