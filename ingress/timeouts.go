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
	errTimeout    = errors.New("The x-request-timeout-seconds of the request must be one positive number of seconds.")
	errOverInLine = errors.New("Every replica stayed busy until the time that this request had was over; try again later.")
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
func (x *proxyRequest) within(ctx context.Context) (context.Context, context.CancelFunc) {
	total := x.model.config.TotalTimeout
	if total == 0 || x.allowed > 0 && x.allowed < total {
		total = x.allowed
	}
	if total == 0 {
		return ctx, func() {}
	}
	over := &streaming.AbortError{
		Code:    "upstream_total_timeout",
		Message: "The replica's answer was not complete when the time of the request, " + inSeconds(total) + ", was over.",
	}
	return context.WithDeadlineCause(ctx, x.began.Add(total), over)
}

// late is what the end of the request's time means to one that has no slot yet.
func late(err error) error {
	if _, ok := errors.AsType[*streaming.AbortError](err); ok {
		return errOverInLine
	}
	return err
}

// inSeconds is a duration as configurations and headers write it.
func inSeconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + " s"
}

// silence ends one attempt whose replica sends nothing for too long: before the first byte of its response or, where that
// is a stream, within it. The time that a client takes to read is not the replica's.
//
// It is the body of the answer and counts its reads, at two atomic additions each. A timer looks now and then
// whether the read under way is the one it saw the last time, so a bound may be passed by up to a quarter of it.
type silence struct {
	io.ReadCloser               // the answer's body
	firstByte     time.Duration // 0: no bound
	gap           time.Duration // 0: no bound
	end           context.CancelCauseFunc
	reads         atomic.Uint64 // odd while one is under way

	mu    sync.Mutex
	timer *time.Timer   // nil after stop
	seen  uint64        // reads at the last look
	quiet time.Duration // for how long it has been that number
	step  time.Duration // to the next look
}

// watchSilence begins to watch over an attempt that ends with ctx; nil if nothing bounds it. The attempt must end with the
// context that it returns, and then stop must be called.
func watchSilence(ctx context.Context, m *config.Model, stream bool) (context.Context, *silence) {
	s := &silence{firstByte: m.UnstreamedFirstByteTimeout}
	if stream {
		s = &silence{firstByte: m.FirstByteTimeout, gap: m.IdleTimeout}
	}
	if s.firstByte == 0 && s.gap == 0 {
		return ctx, nil
	}
	ctx, s.end = context.WithCancelCause(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.step = s.gap / 4
	if s.firstByte > 0 && (s.gap == 0 || s.firstByte < s.gap) {
		s.step = s.firstByte / 4
	}
	s.timer = time.AfterFunc(s.step, s.look)
	return ctx, s
}

// over has the reads of an answer's body counted from now on.
func (s *silence) over(resp *http.Response) {
	if s != nil {
		s.ReadCloser, resp.Body = resp.Body, s
	}
}

func (s *silence) Read(p []byte) (int, error) {
	s.reads.Add(1)
	n, err := s.ReadCloser.Read(p)
	s.reads.Add(1)
	return n, err
}

func (s *silence) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer == nil {
		return
	}
	reads, begun := s.reads.Load(), true
	if reads < 2 {
		reads, begun = 0, false
	}
	if silent := !begun || reads%2 == 1; silent && reads == s.seen {
		s.quiet += s.step
	} else {
		s.seen, s.quiet = reads, 0
	}
	switch {
	case !begun && s.firstByte > 0 && s.quiet >= s.firstByte:
		s.end(&streaming.AbortError{
			Code:    "upstream_first_byte_timeout",
			Message: "The replica sent no byte of its answer within " + inSeconds(s.firstByte) + ".",
		})
	case begun && s.gap > 0 && s.quiet >= s.gap:
		s.end(&streaming.AbortError{
			Code:    "upstream_gap_timeout",
			Message: "The replica fell silent for " + inSeconds(s.gap) + " before its answer was complete.",
		})
	case !begun:
		s.timer.Reset(s.step)
	case s.gap > 0:
		s.step = s.gap / 4
		s.timer.Reset(s.step)
	}
}

// stop ends the watch, and the attempt if it is under way yet.
func (s *silence) stop() {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.timer.Stop()
	s.timer = nil
	s.mu.Unlock()
	s.end(nil)
}
