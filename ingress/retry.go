package ingress

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"berth/llmserver"
	"berth/streaming"
)

// nextAttempt decides whether another attempt is made after attempt n, which failed with err.
// failed joins the errors of earlier attempts; all is failed joined with err. If no other attempt
// is made and a response of an engine was kept that is better than an error, the client gets that
// one, and all is nil. In that case nextAttempt blocks as writeKept does, and may panic.
//
// It must be called only while nothing of a response has been sent to the client.
func (x *proxyRequest) nextAttempt(n int, err, failed error) (more bool, all error) {
	reason := x.retryReason(err)
	last := reason == "" || n >= x.model.config.MaxAttempts
	if last {
		if kept := x.keptResponse(err); kept != nil {
			return false, x.writeKept(kept)
		}
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
// prompt that crashes engines cannot take down the whole fleet. The same holds for a response that
// is held back until it is complete (see holdResponse): if it breaks, is invalid, or was aborted by
// the engine, the client has nothing of it, and the request is retried once for each of these
// reasons. Other failures after a response header are never retried, and neither are timeouts and
// requests of disconnected clients.
func (x *proxyRequest) retryReason(err error) string {
	_, timeout := errors.AsType[*streaming.AbortError](err)
	switch {
	case x.c.Request.Context().Err() != nil || timeout:
		return ""
	case errors.Is(err, errEngineAborted):
		return once(&x.retried.aborted, "engine_aborted")
	case errors.Is(err, errInvalidResponse):
		return once(&x.retried.invalid, "invalid_response")
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
	case errors.Is(err, llmserver.ErrBroken), errors.Is(err, streaming.ErrUpstreamBroken) && x.held != nil:
		return once(&x.retried.broken, "broken")
	default:
		return ""
	}
}

// once returns reason the first time, and then "".
func once(done *bool, reason string) string {
	if *done {
		return ""
	}
	*done = true
	return reason
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
