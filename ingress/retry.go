package ingress

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"berth/llmserver"
	"berth/streaming"
)

// nextAttempt decides whether another attempt is made after attempt n, which failed with err.
// failed joins the errors of earlier attempts; all is failed joined with err. If no other attempt
// is made and a replica's error response was kept, the client gets that response, and all is nil.
// In that case nextAttempt blocks as writeKept does, and may panic.
//
// It must be called only while nothing of a response has been sent to the client.
func (x *proxyRequest) nextAttempt(n int, err, failed error) (more bool, all error) {
	reason := ""
	if n < x.model.config.MaxAttempts {
		reason = x.retryReason(err)
	}
	if reason == "" {
		x.excuseIfShared(err)
	}
	if _, aborted := errors.AsType[*streaming.AbortError](err); reason == "" && x.kept != nil && !aborted && !clientGone(x.c.Request.Context(), err) {
		return false, x.writeKept()
	}
	if failed != nil {
		err = fmt.Errorf("%w; %w", failed, err)
	}
	if reason != "" {
		x.model.metrics.CountRetry(reason)
		x.record.Measured, x.record.Response, x.record.Tap = false, streaming.Result{}, streaming.Tap{}
	}
	return reason != "", err
}

// judgeSuspect decides about the failure of an earlier attempt, after another replica has
// responded: the replica was to blame if the response is good, and the request otherwise.
func (x *proxyRequest) judgeSuspect() {
	switch {
	case x.suspect == nil:
	case x.record.Tap.Failed || x.invalid:
		x.excuseIfShared(llmserver.ErrServerError)
	case x.c.Writer.Status() < http.StatusBadRequest:
		x.suspect.Blame()
	default:
		x.suspect.Excuse()
	}
}

// excuseIfShared takes back the failures of two replicas on the same request, of which err is the
// later one: the request may be to blame.
func (x *proxyRequest) excuseIfShared(err error) {
	if x.suspect != nil && x.suspect != x.selection && llmserver.ReplicaFault(err) {
		x.suspect.Excuse()
		x.selection.Excuse()
	}
}

// retryReason returns the reason for a retry after err, as a label of the retry metric, or "" if
// the request must not be retried.
//
// A request is retried freely if no replica can have begun to process it: there was no connection,
// or the replica, its agent or its engine refused the request.
//
// After any other failure the replica may have begun. Such a failure is retried once per request
// only, so that a prompt that crashes engines cannot take down the whole fleet, and not at all if
// the request may have created something that stays. Failures that other replicas may share are
// retried within a budget. A response of which the client has got a part is never retried.
func (x *proxyRequest) retryReason(err error) string {
	_, timeout := errors.AsType[*streaming.AbortError](err)
	switch {
	case x.c.Request.Context().Err() != nil || timeout:
		return ""
	case errors.Is(err, llmserver.ErrNoConnection):
		return "no_connection"
	case errors.Is(err, llmserver.ErrExhausted): // another replica may have an idle connection
		return "exhausted"
	case errors.Is(err, llmserver.ErrGone):
		return "replica_gone"
	case errors.Is(err, llmserver.ErrBusy):
		return "engine_busy"
	case errors.Is(err, llmserver.ErrModelNotServed):
		return x.withinBudget("model_not_served")
	case llmserver.Refused(err):
		return "refused"
	case x.stores || x.retriedOnce:
		return ""
	}
	reason := ""
	for _, r := range retriesOnce {
		if errors.Is(err, r.err) {
			reason = r.reason
			break
		}
	}
	if errors.Is(err, llmserver.ErrServerError) {
		reason = x.withinBudget("server_error")
	}
	if reason != "" {
		x.retriedOnce, x.suspect = true, x.selection
	}
	return reason
}

// retriesOnce are the failures retried once per request, without a budget.
var retriesOnce = []struct {
	err    error
	reason string
}{
	{llmserver.ErrSilent, "silent"}, // before ErrBroken, which a silent response is, too
	{llmserver.ErrEngineDead, "engine_dead"},
	{llmserver.ErrAborted, "engine_aborted"},
	{llmserver.ErrNotHTTP, "invalid"},
	{llmserver.ErrBroken, "broken"},
	{llmserver.ErrTimeout, "timeout"},
}

// withinBudget returns the reason if there is an untried replica and the model's budget allows a
// retry, else "".
func (x *proxyRequest) withinBudget(reason string) string {
	untried := func(m *llmserver.Replica) bool { return !slices.Contains(x.tried, m) }
	if !slices.ContainsFunc(x.model.router.Members(), untried) || !x.model.retries.withdraw() {
		return ""
	}
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
