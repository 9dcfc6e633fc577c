package ingress

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"berth/llmserver"
	"berth/routers"
)

// nextAttempt decides after attempt n, which ended with err, whether another one is made. failed
// joins the errors of the attempts before; all adds err to it. If the last attempt finds no replica
// or a busy engine, and an engine has responded that it is busy, the client gets that engine's own
// response, and all is nil.
//
// It is only called while nothing of a response has been sent to the client.
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

// retryReason returns the reason for which a request may be retried after err, as the metric of
// retries names it, or "" if it must not be.
//
// A retry must not make an engine do the same work twice, so the replica must not have begun to
// process the request: there was no connection, or the replica, its agent or its engine refused it.
// The exception is a connection that broke before any byte of a response. Whether the replica had
// begun is unknown then, so this is retried once per request only, and a prompt that crashes
// engines cannot take down the whole fleet. Anything that came after a response header is never
// retried, and neither is a request whose client has disconnected.
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

// jitter changes a Retry-After by up to a fifth, within 1 to 60 s, so that clients that were
// rejected together do not return together. Zero, which is no advice, stays zero.
func jitter(d time.Duration) time.Duration {
	if d == 0 {
		return 0
	}
	d += time.Duration((rand.Float64() - 0.5) * 0.4 * float64(d))
	return min(max(d, time.Second), time.Minute)
}
