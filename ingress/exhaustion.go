package ingress

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// throttleInterval is the shortest time between two lines of a throttledLog. Exhaustion usually
// recurs with every request.
const throttleInterval = 10 * time.Second

// A throttledLog logs a warning at most once per throttleInterval. Any goroutine may call warn,
// which does not block on concurrent calls.
type throttledLog struct {
	log     *slog.Logger
	message string
	start   time.Time    // the origin of next, on the monotonic clock
	next    atomic.Int64 // when the next line may be logged, in nanoseconds since start
	omitted atomic.Int64 // lines since the last one
}

func newThrottledLog(log *slog.Logger, message string) *throttledLog {
	return &throttledLog{log: log, message: message, start: time.Now()}
}

// warn logs the message with args, or counts the line as omitted. Of concurrent calls one logs.
func (e *throttledLog) warn(args ...any) {
	now, next := int64(time.Since(e.start)), e.next.Load()
	if now < next || !e.next.CompareAndSwap(next, now+int64(throttleInterval)) {
		e.omitted.Add(1)
		return
	}
	e.log.Warn(e.message, append(args, "omitted_lines", e.omitted.Swap(0))...)
}

// An exhaustion counts and logs connections that failed because the process or the machine was out
// of descriptors, ports or memory. No replica is blamed for those.
type exhaustion struct {
	count func()
	*throttledLog
}

func newExhaustion(count func(), log *slog.Logger) *exhaustion {
	return &exhaustion{
		count:        count,
		throttledLog: newThrottledLog(log, "out of descriptors, ports or memory for a connection; no replica is to blame"),
	}
}

// report records one failure. Any goroutine may call it.
func (e *exhaustion) report(err error) {
	e.count()
	e.warn("error", err)
}
