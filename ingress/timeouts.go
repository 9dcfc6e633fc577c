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
	"berth/streaming"
)

// timeoutHeader is by which a client bounds its request's whole time, in seconds. It makes the model's bound shorter and
// never longer.
const timeoutHeader = "X-Request-Timeout-Seconds"

var (
	errTimeout       = errors.New("The x-request-timeout-seconds of the request must be one positive number of seconds.")
	errQueueDeadline = errors.New("Every replica stayed busy until the time that this request had was over; try again later.")
)

// requestTimeout is what the client allows, 0 if it does not say.
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

// within bounds ctx by the time that the request has, from its head on, waiting in line included.
func (x *proxyRequest) withTotalTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	total := x.model.config.TotalTimeout
	if total == 0 || x.allowed > 0 && x.allowed < total {
		total = x.allowed
	}
	if total == 0 {
		return ctx, func() {}
	}
	over := &streaming.AbortError{
		Code:    "upstream_total_timeout",
		Message: "The replica's answer was not complete when the time of the request, " + formatSeconds(total) + ", was over.",
	}
	return context.WithDeadlineCause(ctx, x.began.Add(total), over)
}

// late is what the end of the request's time means to one that has no slot yet.
func asQueueTimeout(err error) error {
	if _, ok := errors.AsType[*streaming.AbortError](err); ok {
		return errQueueDeadline
	}
	return err
}

// inSeconds is a duration as configurations and headers write it.
func formatSeconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + " s"
}

// silence ends one attempt whose replica sends nothing for too long: before the first byte of its response or, where that
// is a stream, within it. The time that a client takes to read is not the replica's.
//
// It is the body of the answer and counts its reads, at two atomic additions each. A timer looks now and then
// whether the read under way is the one it saw the last time, so a bound may be passed by up to a quarter of it.
type idleWatchdog struct {
	io.ReadCloser               // the answer's body
	firstByte     time.Duration // 0: no bound
	idle          time.Duration // 0: no bound
	cancel        context.CancelCauseFunc
	reads         atomic.Uint64 // odd while one is under way

	mu        sync.Mutex
	timer     *time.Timer   // nil after stop
	lastReads uint64        // reads at the last look
	unchanged time.Duration // for how long it has been that number
	interval  time.Duration // to the next look
}

// watchSilence begins to watch over an attempt that ends with ctx; nil if nothing bounds it. The attempt must end with the
// context that it returns, and then stop must be called.
func newIdleWatchdog(ctx context.Context, m *config.Model, stream bool) (context.Context, *idleWatchdog) {
	s := &idleWatchdog{firstByte: m.UnstreamedFirstByteTimeout}
	if stream {
		s = &idleWatchdog{firstByte: m.FirstByteTimeout, idle: m.GapTimeout}
	}
	if s.firstByte == 0 && s.idle == 0 {
		return ctx, nil
	}
	ctx, s.cancel = context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.interval = s.idle / 4
	if s.firstByte > 0 && (s.idle == 0 || s.firstByte < s.idle) {
		s.interval = s.firstByte / 4
	}
	s.timer = time.AfterFunc(s.interval, s.check)
	return ctx, s
}

// over has the reads of an answer's body counted from now on.
func (s *idleWatchdog) wrapBody(resp *http.Response) {
	if s != nil {
		s.ReadCloser, resp.Body = resp.Body, s
	}
}

func (s *idleWatchdog) Read(p []byte) (int, error) {
	s.reads.Add(1)
	n, err := s.ReadCloser.Read(p)
	s.reads.Add(1)
	return n, err
}

func (s *idleWatchdog) check() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer == nil {
		return
	}
	reads, begun := s.reads.Load(), true
	if reads < 2 {
		reads, begun = 0, false
	}
	if silent := !begun || reads%2 == 1; silent && reads == s.lastReads {
		s.unchanged += s.interval
	} else {
		s.lastReads, s.unchanged = reads, 0
	}
	switch {
	case !begun && s.firstByte > 0 && s.unchanged >= s.firstByte:
		s.cancel(&streaming.AbortError{
			Code:    "upstream_first_byte_timeout",
			Message: "The replica sent no byte of its answer within " + formatSeconds(s.firstByte) + ".",
		})
	case begun && s.idle > 0 && s.unchanged >= s.idle:
		s.cancel(&streaming.AbortError{
			Code:    "upstream_gap_timeout",
			Message: "The replica fell silent for " + formatSeconds(s.idle) + " before its answer was complete.",
		})
	case !begun:
		s.timer.Reset(s.interval)
	case s.idle > 0:
		s.interval = s.idle / 4
		s.timer.Reset(s.interval)
	}
}

// stop ends the watch, and the attempt if it is under way yet.
func (s *idleWatchdog) stop() {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.timer.Stop()
	s.timer = nil
	s.mu.Unlock()
	s.cancel(nil)
}
