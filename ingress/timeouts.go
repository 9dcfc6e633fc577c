package ingress

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"berth/config"
	"berth/internal/http1"
	"berth/routers"
	"berth/streaming"
)

// timeoutHeader is the header by which a client bounds the total time of its request, in seconds.
// The header can shorten the model's bound but not extend it.
const timeoutHeader = "X-Request-Timeout-Seconds"

// requestTimeout returns the timeout in a request header; 0 for none. The error is errTimeout.
// Exponents, signs, NaN and infinities are errors, although ParseFloat accepts them.
func requestTimeout(h http.Header) (time.Duration, error) {
	values := h[timeoutHeader]
	if len(values) == 0 {
		return 0, nil
	}
	seconds, err := strconv.ParseFloat(values[0], 64)
	if err != nil || len(values) > 1 || seconds <= 0 || strings.Trim(values[0], "0123456789.") != "" {
		return 0, errTimeout
	}
	if seconds >= math.MaxInt64/float64(time.Second) {
		return math.MaxInt64, nil
	}
	return max(time.Duration(seconds*float64(time.Second)), 1), nil
}

// withTotalTimeout bounds ctx by the shorter of the model's total timeout and the requested one; 0
// is no bound. The time runs from began, when the request header was read, and includes the queue.
// The cause of the context is then a *streaming.AbortError.
func withTotalTimeout(ctx context.Context, began time.Time, total, requested time.Duration) (context.Context, context.CancelFunc) {
	if total == 0 || requested > 0 && requested < total {
		total = requested
	}
	if total == 0 {
		return ctx, func() {}
	}
	exceeded := &streaming.AbortError{
		Code:    "upstream_total_timeout",
		Message: "The replica's response was not complete within the request's time limit of " + formatSeconds(total) + "; allow more time, or request fewer tokens.",
	}
	return context.WithDeadlineCause(ctx, began.Add(total), exceeded)
}

// asQueueTimeout translates the error of Router.Choose: a timeout of a request without a slot, past
// or foreseen, becomes errQueueDeadline, because no replica is to blame for the time in the queue.
// Other errors are returned unchanged.
func asQueueTimeout(err error) error {
	if _, ok := errors.AsType[*streaming.AbortError](err); ok || errors.Is(err, routers.ErrDeadline) {
		return errQueueDeadline
	}
	return err
}

// formatSeconds formats a duration in the form of configurations and headers.
func formatSeconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + " s"
}

// An idleWatchdog ends an attempt at a silent replica: one that sends nothing for too long before
// the first byte of the response, or within an event stream. The time in which the client reads
// does not count.
//
// The watchdog wraps the response body and counts the reads, at two atomic additions each, instead
// of setting a timer for each read. The timer compares the count four times per bound: the replica
// is idle while the same read is in progress, so an attempt may exceed its bound by up to a
// quarter.
//
// Read, wrapBody and stop are called on the goroutine of the attempt, check on the timer's.
type idleWatchdog struct {
	io.ReadCloser               // the response body, set by wrapBody
	firstByte     time.Duration // 0: no bound
	idle          time.Duration // 0: no bound
	ctx           http1.Context // of the attempt
	reads         atomic.Uint64 // odd while a read is in progress

	mu        sync.Mutex    // guards the fields below
	timer     *time.Timer   // nil after stop, or if nothing bounds the attempt
	lastReads uint64        // reads at the last check
	unchanged time.Duration // time since reads changed
	interval  time.Duration // until the next check
}

// newIdleWatchdog starts a watchdog for an attempt, with a timer unless nothing bounds the attempt.
// The attempt must use the watchdog's ctx. Its error becomes a *streaming.AbortError when a bound
// is exceeded, and stop must be called at the end of the attempt.
func newIdleWatchdog(ctx context.Context, m *config.Model, stream bool) *idleWatchdog {
	w := &idleWatchdog{firstByte: m.UnstreamedFirstByteTimeout}
	if stream {
		w = &idleWatchdog{firstByte: m.FirstByteTimeout, idle: m.IdleTimeout}
	}
	w.ctx.Start(ctx)
	if w.firstByte == 0 && w.idle == 0 {
		return w
	}
	w.mu.Lock() // the first check may run before timer is set
	defer w.mu.Unlock()
	w.interval = w.idle / 4
	if w.firstByte > 0 && (w.idle == 0 || w.firstByte < w.idle) {
		w.interval = w.firstByte / 4
	}
	w.timer = time.AfterFunc(w.interval, w.check)
	return w
}

// wrapBody counts the reads of a response body from now on. It must be called once, after the
// response header has arrived: the header alone is not the first byte.
func (w *idleWatchdog) wrapBody(resp *http.Response) {
	if w.timer != nil {
		w.ReadCloser, resp.Body = resp.Body, w
	}
}

// Read counts before and after the read, so the count is odd during a read. A read that ends
// between two checks always changes the count.
func (w *idleWatchdog) Read(p []byte) (int, error) {
	w.reads.Add(1)
	n, err := w.ReadCloser.Read(p)
	w.reads.Add(1)
	return n, err
}

// check runs on the timer's goroutine. It ends the attempt, schedules the next check, or does
// neither if no bound applies any more.
func (w *idleWatchdog) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer == nil {
		return // stop was called while this check was starting
	}
	// The first byte has arrived once the first read has returned.
	reads, started := w.reads.Load(), true
	if reads < 2 {
		reads, started = 0, false
	}
	if waiting := !started || reads%2 == 1; waiting && reads == w.lastReads {
		w.unchanged += w.interval
	} else {
		w.lastReads, w.unchanged = reads, 0
	}
	switch {
	case !started && w.firstByte > 0 && w.unchanged >= w.firstByte:
		w.ctx.Cancel(&streaming.AbortError{
			Code:    "upstream_first_byte_timeout",
			Message: "The replica sent no byte of its response within " + formatSeconds(w.firstByte) + "; try again later.",
		})
	case started && w.idle > 0 && w.unchanged >= w.idle:
		w.ctx.Cancel(&streaming.AbortError{
			Code:    "upstream_idle_timeout",
			Message: "The replica sent nothing for " + formatSeconds(w.idle) + " before its response was complete; try again.",
		})
	case !started:
		w.timer.Reset(w.interval)
	case w.idle > 0:
		w.interval = w.idle / 4
		w.timer.Reset(w.interval)
	}
}

// stop ends the watchdog and the context of the attempt. It must be called exactly once, also after
// an abort. A check already started finds timer nil, so no check has an effect after stop.
func (w *idleWatchdog) stop() {
	w.mu.Lock()
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	w.mu.Unlock()
	w.ctx.Cancel(context.Canceled)
}
