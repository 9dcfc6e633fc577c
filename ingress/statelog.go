package ingress

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"berth/llmserver"
)

// trialLogInterval is the shortest time between two lines about failed trials of one replica.
const trialLogInterval = 30 * time.Second

// A stateLog logs each change of a replica's state, as a warning if the replica goes out of use.
//
// An ejected replica gets a trial request time and again, so a sick one alternates between ejected
// and half open. Both count as one state here: the log has a line when it begins, one when it ends,
// and in between at most one per trialLogInterval with the number of failed trials.
type stateLog struct {
	log *slog.Logger

	mu      sync.Mutex
	ejected map[*llmserver.Replica]*ejection // those ejected or half open
}

// An ejection is the time from one good state of a replica to the next.
type ejection struct {
	began        time.Time
	trials       int       // failed ones
	reported     int       // of trials, in earlier lines
	nextReported time.Time // when a line about trials may follow
}

func newStateLog(log *slog.Logger) *stateLog {
	return &stateLog{log: log, ejected: make(map[*llmserver.Replica]*ejection)}
}

// report logs a change. The changes of one replica come one at a time, in order; see
// llmserver.Events.
func (l *stateLog) report(c llmserver.StateChange) {
	e := c.Replica.Endpoint()
	log := l.log.With("replica", e.ID, "model", e.Model)
	isEjected := c.To == "ejected" || c.To == "half_open"
	before, trials := l.update(c, isEjected)
	switch {
	case before == nil:
		log.Log(context.Background(), stateLevel(c.To), "replica state changed", "from", c.From, "to", c.To, "reason", c.Reason, "lasted", roundTime(c.Lasted))
	case !isEjected:
		log.Log(context.Background(), stateLevel(c.To), "replica state changed", "from", "ejected", "to", c.To, "reason", c.Reason,
			"lasted", roundTime(c.At.Sub(before.began)), "failed_trials", before.trials)
	case trials > 0:
		log.Warn("replica fails its trials", "failed_trials", trials, "reason", c.Reason, "ejected_for", roundTime(c.At.Sub(before.began)))
	}
}

// update records a change. It returns the ejection that lasted before, or nil, and the number of
// failed trials if a line about those is due.
func (l *stateLog) update(c llmserver.StateChange, isEjected bool) (before *ejection, trials int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = l.ejected[c.Replica]
	switch {
	case !isEjected:
		delete(l.ejected, c.Replica)
	case before == nil:
		l.ejected[c.Replica] = &ejection{began: c.At, nextReported: c.At.Add(trialLogInterval)}
	case c.To == "ejected":
		before.trials++
		if !c.At.Before(before.nextReported) {
			trials = before.trials - before.reported
			before.reported, before.nextReported = before.trials, c.At.Add(trialLogInterval)
		}
	}
	return before, trials
}

// stateLevel returns the level of a line about a replica that is now in the state.
func stateLevel(state string) slog.Level {
	if state == "down" || state == "ejected" {
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// roundTime returns d without the digits of no use in a log.
func roundTime(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(100 * time.Millisecond)
}
