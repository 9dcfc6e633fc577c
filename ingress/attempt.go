package ingress

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"berth/ingress/telemetry"
	"berth/internal/openai"
	"berth/llmserver"
	"berth/routers"
	"berth/streaming"
)

// attempt chooses a replica, dispatches the request into the slot reserved there and relays the
// response. It returns nil once the client has a complete response, and an error only if nothing
// has been written to the client, so nextAttempt may decide on another attempt. A response that
// breaks off later is aborted by a panic.
//
// attempt blocks in Choose (bounded by the queue timeout and ctx), in dispatch and in Copy (bounded
// by the model's timeouts, ctx and the client's connection).
//
// An error from Choose means that no slot is held.
//
// The deferred functions run in reverse order on every path, panics included: first the idle
// watchdog stops and ends the attempt's context, which aborts the upstream request; then the span
// ends; Release is last. Release is deferred before anything that might panic, makes no remote call
// for a dispatched slot, and returns nothing, so the error of the attempt stays visible. The slot
// is released before attempt returns: a request never holds two.
func (x *proxyRequest) attempt(ctx context.Context) error {
	sel, span, err := x.choose(ctx)
	if err != nil {
		return err
	}
	defer sel.Release() // first of all: spans and metrics below may panic
	defer x.countAttempt(sel)
	x.recordChoice(sel, span)
	// The replica gets the context of this attempt's span, not of the whole request's.
	ctx, x.span = x.telemetry.StartAttempt(ctx)
	defer x.span.EndAttempt(x.record)
	watchdog := newIdleWatchdog(ctx, &x.model.config, x.record.Stream)
	defer watchdog.stop()
	if !x.stores && !x.retriedOnce && x.record.Attempts < x.model.config.MaxAttempts {
		sel.OnSilence(watchdog.ctx.Cancel) // otherwise an early end would gain nothing
	}
	resp, err := x.dispatch(&watchdog.ctx, sel)
	if err != nil {
		return err
	}
	watchdog.wrapBody(resp)
	x.record.Phase = telemetry.PhaseStreaming
	relay := x.relayFor(x.c.Request.URL.Path, x.model.config.StreamKeepAlive)
	// With the first byte to the client no other attempt can follow, so the request body is not
	// needed any more.
	relay.BeforeStart = x.releaseBody
	x.holdResponse(&relay, resp)
	if relay.Opened = x.opening.Close(); relay.Opened && !streaming.IsEventStream(resp) {
		x.failOpenedBy(resp)
	}
	x.record.Measured = true
	x.record.Response, err = relay.Copy(x.c.Request.Context(), x.c.Writer, resp, &x.record.Tap)
	return x.finishAttempt(sel, err)
}

// choose reserves a slot for the attempt. Replicas that failed earlier attempts are excluded. The
// caller must release the selection, and end the span by recordChoice.
func (x *proxyRequest) choose(ctx context.Context) (*routers.Selection, telemetry.Span, error) {
	x.record.Phase = telemetry.PhaseWaiting
	span := x.telemetry.StartChoose(ctx)
	sel, err := x.model.router.Choose(ctx, &x.payload, x.tried...)
	x.record.Waited = x.payload.Waited
	if err != nil {
		if span.Recording() {
			span.EndChoose(x.record, toAPIError(err).code)
		}
		return nil, span, asQueueTimeout(err)
	}
	return sel, span, nil
}

// recordChoice records the selection of the attempt.
func (x *proxyRequest) recordChoice(sel *routers.Selection, span telemetry.Span) {
	x.selection = sel
	x.record.Attempts++
	x.record.Replica, x.record.Rank, x.record.Matched = sel.Replica().ID(), sel.Rank(), sel.Matched()
	span.EndChoose(x.record, "")
	x.model.metrics.CountAccepted()
}

// dispatch sends the request into the slot and returns the response header. sel must not have been
// dispatched before. It blocks until the header has arrived or ctx ends. After an error nothing has
// been sent to the client, and the replica is excluded from further attempts unless the only fault
// was a stale pooled connection.
//
// A response that is a failure of the replica is an error too: another replica may serve the
// request.
func (x *proxyRequest) dispatch(ctx context.Context, sel *routers.Selection) (resp *http.Response, err error) {
	req := x.upstreamRequest(ctx)
	defer func() {
		if err != nil {
			req.Body.Close() // after a success the backend closes it
		}
	}()
	// The overhead is all time since the attempt became ready, minus the time in the queue.
	x.record.Phase = telemetry.PhaseFirstByte
	x.record.Dispatched = time.Now()
	x.model.metrics.ObserveOverhead(x.record.Dispatched.Sub(x.ready) - x.payload.Waited)
	if resp, err = sel.Dispatch(req); err == nil {
		x.rewriteResponse(resp, sel)
		if err = x.checkStatus(sel, resp); err == nil {
			return resp, nil
		}
	}
	x.prepareRetry(sel, err)
	return nil, err
}

// prepareRetry updates the state for another attempt after sel failed with err. The slot is still
// held here; attempt's defer releases it before the next attempt chooses.
func (x *proxyRequest) prepareRetry(sel *routers.Selection, err error) {
	// A stale pooled connection says little about the replica, so the next attempt may choose the
	// same one, but only if there is no other: the replica may be dying, and a request is retried
	// once only.
	if !errors.Is(err, llmserver.ErrStale) || x.payload.PinnedTo == nil && len(x.model.router.Members()) > 1 {
		x.tried = append(x.tried, sel.Replica())
	}
	// Waited adds up over attempts, so the next overhead must not subtract the earlier waits again.
	x.ready = time.Now().Add(-x.payload.Waited)
	x.recordUpstreamError(err)
}

// rewriteResponse edits the replica's response header for the client. The body passes unchanged.
func (x *proxyRequest) rewriteResponse(resp *http.Response, sel *routers.Selection) {
	if openai.CreatesStored(x.c.Request.URL.Path) {
		x.owners.sniffID(resp, sel.Replica())
	}
	resp.Header.Del(requestIDHeader) // the client gets the logged ID
	if x.registry.table.Load().config.DecisionHeaders {
		x.addDecisionHeaders(resp.Header)
	}
}

// addDecisionHeaders reports the routing decision to the client. Such headers of another berth
// behind this one are replaced. The map is written directly: the keys are in canonical form
// already.
func (x *proxyRequest) addDecisionHeaders(h http.Header) {
	h["X-Berth-Replica"] = []string{x.record.Replica}
	h["X-Berth-Policy"] = []string{x.record.Policy}
	h["X-Berth-Rank"] = []string{strconv.Itoa(x.record.Rank)}
	delete(h, "X-Berth-Prefix-Match")
	if blocks := len(x.payload.Blocks); blocks > 0 {
		match := float64(x.record.Matched) / float64(blocks)
		h["X-Berth-Prefix-Match"] = []string{strconv.FormatFloat(match, 'f', 2, 64)}
	}
}

// finishAttempt handles the end of a relayed response. After a failed relay, the outcome of the
// selection records the cause, replica or client, and a response already begun is aborted, so as
// not to look complete. The error is returned only if nothing was sent: another attempt, or an
// error response, is still possible.
func (x *proxyRequest) finishAttempt(sel *routers.Selection, err error) error {
	x.reportEngineAbort(sel, err)
	if err == nil {
		switch {
		case x.invalid:
			sel.Fail(errInvalidResponse)
		case x.record.Tap.Failed:
			sel.Fail(fmt.Errorf("%w: an error event in the stream", llmserver.ErrServerError))
		}
		return nil
	}
	result := x.record.Response
	if result.Stalled {
		x.log.Warn("a client was disconnected because it read nothing of its response",
			"send_timeout_s", x.registry.table.Load().config.HTTP.SendTimeout.Seconds(), "request_id", requestID(x.c))
	}
	err = attributeError(err)
	// Before the panic of abort: Release reports the outcome.
	sel.Fail(err)
	// Comments before the response are nothing of it.
	if result.Started && (result.Bytes > 0 || !x.opening.Close()) {
		x.recordUpstreamError(err)
		x.excuseIfShared(err)
		x.abort(err)
	}
	x.prepareRetry(sel, err)
	return err
}

// releaseBody frees the memory of the request body. It is called as soon as the client gets the
// first byte of a response, when no other attempt can follow: streams last long, and their prompts
// would fill the memory. A part still unread by the replica stays until its reader is closed.
// Further calls do nothing.
func (x *proxyRequest) releaseBody() {
	x.payload.Text = nil // which points into the body
	if x.body != nil {
		x.body.Release()
	}
}

// upstreamRequest returns the client's request in the form for the replica. Header and URL are the
// client's own, shared by all attempts; backends change neither. Each attempt has its own reader of
// the body, because a transport may still use the previous one. The caller must close the reader
// unless Dispatch succeeds.
func (x *proxyRequest) upstreamRequest(ctx context.Context) *http.Request {
	in := x.c.Request
	streaming.TrimRequestHeader(in.Header)
	out := &http.Request{
		Method:        in.Method,
		URL:           in.URL,
		Header:        x.telemetry.InjectTrace(ctx, in.Header),
		Body:          x.body.NewReader(),
		ContentLength: x.body.Size(),
	}
	if prefix := openai.VersionPrefix(in.URL.Path); prefix != "" || in.URL.ForceQuery { // an empty query is dropped
		out.URL = &url.URL{Path: prefix + in.URL.Path, RawQuery: in.URL.RawQuery}
		if in.URL.RawPath != "" {
			out.URL.RawPath = prefix + in.URL.RawPath
		}
	}
	return out.WithContext(ctx)
}
