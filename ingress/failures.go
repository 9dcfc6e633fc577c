package ingress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"berth/llmserver"
)

const (
	// failureInterval is the shortest time between two lines about failed responses of one replica.
	failureInterval = 5 * time.Second
	// recentFailures is the number of failures that are remembered of each replica.
	recentFailures = 8
	// forgetFailures is the time after which a replica without failures may be forgotten, when
	// another one fails for the first time.
	forgetFailures = time.Hour
)

// A responseFailure is a response that a replica broke off, never began, or used to report an error
// of its own.
type responseFailure struct {
	model, replica, requestID string

	phase   string // of the request
	bytes   int64  // sent to the client
	after   time.Duration
	retried bool
	reason  string
	at      time.Time // of the failure
}

// setFailure records a failure of the current attempt, for reportFailure.
func (x *proxyRequest) setFailure(reason string) {
	now := time.Now()
	x.failure = &responseFailure{
		model: x.model.config.ID, replica: x.record.Replica, requestID: x.record.ID,
		phase: x.record.Phase, bytes: x.record.Response.Bytes, after: now.Sub(x.record.Dispatched), reason: reason, at: now,
	}
}

// breaksResponse reports whether the error of an attempt is a failure to log. A replica that could
// not be reached or refused the request has broken no response: the changes of its state are in the
// log. A stale connection is normal.
func breaksResponse(err error) bool {
	return !llmserver.Refused(err) && !errors.Is(err, llmserver.ErrBusy) && !errors.Is(err, llmserver.ErrStale)
}

// reportFailure logs the failure of an attempt that has ended, if there was one. Inlined, the copy of
// the failure would be a part of the stack of every waiting stream.
//
//go:noinline
func (x *proxyRequest) reportFailure(retried bool) {
	if x.failure != nil {
		x.failure.retried = retried
		x.failures.report(*x.failure)
		x.failure = nil
	}
}

// reportLastFailure is reportFailure at the end of the request, for a response as well by which the
// replica reports a failure of its own. It must be deferred: truncated responses end by a panic.
func (x *proxyRequest) reportLastFailure() {
	relayed := x.record.Response.Started && x.record.ErrorCode == "" && (x.kept == nil || x.record.Measured)
	if x.failure == nil && relayed {
		switch status := x.c.Writer.Status(); {
		case status >= http.StatusInternalServerError:
			x.setFailure(fmt.Sprintf("%d %s", status, http.StatusText(status)))
		case x.record.Tap.Failed:
			x.setFailure("error event in the stream")
		}
	}
	x.reportFailure(false)
}

// A failureLog logs failed responses and remembers the latest ones of each replica. When a replica
// dies, hundreds of responses fail at once. So the first failure of a replica is logged at once,
// those within failureInterval are counted, and one line at the end of that time has their number
// and the last of them. Any goroutine may call report, which does not block.
type failureLog struct {
	log *slog.Logger

	mu       sync.Mutex
	replicas map[replicaName]*replicaFailures
	closed   bool
}

type replicaName struct{ model, id string }

type replicaFailures struct {
	total   uint64
	recent  []responseFailure // the oldest first
	omitted int               // since the last line
	timer   *time.Timer       // ends the interval of the last line; nil if that is over
}

func newFailureLog(log *slog.Logger) *failureLog {
	return &failureLog{log: log, replicas: make(map[replicaName]*replicaFailures)}
}

// report logs f, or counts it for a later line.
func (l *failureLog) report(f responseFailure) {
	if l.record(f) {
		l.write("response failed", f)
	}
}

// record remembers f, and reports whether a line is due.
func (l *failureLog) record(f responseFailure) (due bool) {
	name := replicaName{f.model, f.replica}
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.replicas[name]
	if r == nil {
		l.forgetOld(f.at)
		r = new(replicaFailures)
		l.replicas[name] = r
	}
	r.total++
	r.recent = append(r.recent[max(0, len(r.recent)+1-recentFailures):], f)
	if r.timer != nil {
		r.omitted++
		return false
	}
	if !l.closed {
		r.timer = time.AfterFunc(failureInterval, func() { l.endInterval(r) })
	}
	return true
}

// endInterval logs the failures that were only counted, if any, and then counts on for another
// interval.
func (l *failureLog) endInterval(r *replicaFailures) {
	l.mu.Lock()
	omitted, last := r.omitted, r.recent[len(r.recent)-1]
	r.omitted = 0
	if omitted == 0 || l.closed {
		r.timer = nil
	} else {
		r.timer.Reset(failureInterval)
	}
	l.mu.Unlock()
	switch {
	case omitted == 1:
		l.write("response failed", last)
	case omitted > 1:
		l.write("more responses failed", last, "count", omitted)
	}
}

// write logs a line about f.
func (l *failureLog) write(message string, f responseFailure, more ...any) {
	l.log.Log(context.Background(), slog.LevelWarn, message, append(more,
		"replica", f.replica, "model", f.model, "request_id", f.requestID, "phase", f.phase, "bytes", f.bytes,
		"after", roundTime(f.after), "retried", f.retried, "reason", f.reason)...)
}

// forgetOld removes replicas without a recent failure: replicas come and go. l.mu is held.
func (l *failureLog) forgetOld(now time.Time) {
	for name, r := range l.replicas {
		if now.Sub(r.recent[len(r.recent)-1].at) > forgetFailures {
			delete(l.replicas, name)
		}
	}
}

// of returns the number of failures of a replica, and the latest of them, the oldest first.
func (l *failureLog) of(model, replica string) (total uint64, recent []responseFailure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.replicas[replicaName{model, replica}]
	if r == nil {
		return 0, nil
	}
	return r.total, slices.Clone(r.recent)
}

// close logs what was only counted. Later failures are logged at once.
func (l *failureLog) close() {
	l.mu.Lock()
	l.closed = true
	var open []*replicaFailures
	for _, r := range l.replicas {
		if r.timer != nil && r.timer.Stop() {
			open = append(open, r)
		}
	}
	l.mu.Unlock()
	for _, r := range open {
		l.endInterval(r)
	}
}
