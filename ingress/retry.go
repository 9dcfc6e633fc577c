package ingress

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"berth/llmserver"
	"berth/routers"
)

// nextAttempt decides whether another attempt is made after attempt n, which failed with err.
// failed joins the errors of earlier attempts; all is failed joined with err. If no other attempt
// is made and this one met only busy engines or no available replica, the client gets the last busy
// response of an engine, if one was kept, and all is nil. In that case nextAttempt blocks as
// writeBusy does, and may panic.
//
// It must be called only while nothing of a response has been sent to the client.
func (x *proxyRequest) nextAttempt(n int, err, failed error) (more bool, all error) {
	reason := x.retryReason(err)
	last := reason == "" || n >= x.model.config.MaxAttempts
	if _, none := errors.AsType[*routers.UnavailableError](err); last && x.refusal != nil && (none || errors.Is(err, llmserver.ErrBusy)) {
		return false, x.writeBusy()
	}
	if failed != nil {
		err = fmt.Errorf("%w; %w", failed, err)
	}
	if !last {
		x.model.metrics.CountRetry(reason)
	}
	return !last, err
}

// retryReason returns the reason for a retry after err, as a label of the retry metric, or "" if
// the request must not be retried.
//
// A retry must not make an engine do the same work twice. So a request is retried only if no
// replica can have begun to process it: there was no connection, or the replica, its agent or its
// engine refused the request. The exception is a connection that broke before the first byte of a
// response. The replica may have begun then, so such a failure is retried once per request only: a
// prompt that crashes engines cannot take down the whole fleet. Failures after a response header
// are never retried, and neither are requests of disconnected clients.
func (x *proxyRequest) retryReason(err error) string {
	switch {
	case x.c.Request.Context().Err() != nil:
		return ""
	case errors.Is(err, llmserver.ErrNoConnection):
		return "no_connection"
	case errors.Is(err, llmserver.ErrExhausted): // another replica may have an idle connection
		return "exhausted"
	case errors.Is(err, llmserver.ErrGone):
		return "replica_gone"
	case errors.Is(err, llmserver.ErrBusy):
		return "engine_busy"
	case llmserver.Refused(err):
		return "refused"
	case errors.Is(err, llmserver.ErrBroken) && !x.broken:
		x.broken = true
		return "broken"
	default:
		return ""
	}
}

// jitter changes a Retry-After by up to a fifth, within 1 to 60 s, to spread the retries of clients
// rejected at the same time. Zero, for no advice, stays zero.
func jitter(d time.Duration) time.Duration {
	if d == 0 {
		return 0
	}
	d += time.Duration((rand.Float64() - 0.5) * 0.4 * float64(d))
	return min(max(d, time.Second), time.Minute)
}
