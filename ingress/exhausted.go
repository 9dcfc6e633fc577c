package ingress

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// exhaustionInterval is the shortest time between two log lines about one kind of exhaustion, which
// comes with every request while it lasts.
const exhaustionInterval = 10 * time.Second

// An exhaustionLog writes a warning at most once per exhaustionInterval. Its methods may be called
// by any goroutine.
type exhaustionLog struct {
	log     *slog.Logger
	message string
	began   time.Time    // what next counts from, on the monotonic clock
	next    atomic.Int64 // nanoseconds since began
	omitted atomic.Int64 // lines since the last one
}

func newExhaustionLog(log *slog.Logger, message string) *exhaustionLog {
	return &exhaustionLog{log: log, message: message, began: time.Now()}
}

// warn logs the message with args, or counts it as omitted.
func (e *exhaustionLog) warn(args ...any) {
	now, next := int64(time.Since(e.began)), e.next.Load()
	if now < next || !e.next.CompareAndSwap(next, now+int64(exhaustionInterval)) {
		e.omitted.Add(1)
		return
	}
	e.log.Warn(e.message, append(args, "omitted_lines", e.omitted.Swap(0))...)
}

// An exhaustion counts and logs what failed because this process was out of descriptors, ports or
// memory for a connection.
type exhaustion struct {
	count func()
	*exhaustionLog
}

func newExhaustion(count func(), log *slog.Logger) *exhaustion {
	return &exhaustion{
		count:         count,
		exhaustionLog: newExhaustionLog(log, "out of descriptors, ports or memory for a connection; no replica is to blame"),
	}
}

// report notes one failure. It may be called by any goroutine.
func (e *exhaustion) report(err error) {
	e.count()
	e.warn("error", err)
}
