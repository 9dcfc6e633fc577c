package ingress

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/trace"

	"berth/internal/openai"
	"berth/llmserver"
	"berth/routers"
	"berth/streaming"
)

// attempt chooses a replica, dispatches the request into the slot on it and
// passes the answer on, all while ctx lasts. The slot is given back before it returns, so that a request never
// holds two.
func (x *proxyRequest) attempt(ctx context.Context) error {
	x.phase = phaseWaiting
	_, choosing := x.tracing.begin(ctx, "choose", trace.SpanKindInternal)
	sel, err := x.model.router.Choose(ctx, &x.payload, x.tried...)
	if err != nil {
		x.chose(choosing, nil, err)
		return asQueueTimeout(err)
	}
	defer sel.Release() // before anything else, which might panic
	x.chose(choosing, sel, nil)
	x.attempts, x.replica, x.rank, x.matched = x.attempts+1, sel.Replica().ID(), sel.Rank(), sel.Matched()
	x.model.metrics.accepted().Inc()
	ctx, x.span = x.tracing.begin(ctx, "attempt", trace.SpanKindClient)
	defer x.attempted(x.span)
	ctx, quiet := newIdleWatchdog(ctx, &x.model.config, x.stream)
	defer quiet.stop()
	resp, err := x.send(ctx, sel)
	if err != nil {
		return err
	}
	quiet.wrapBody(resp)
	x.phase = phaseStreaming
	x.sent()
	x.amend(resp, sel)
	relay := x.relaying(x.c.Request.URL.Path, x.model.config.StreamKeepAlive)
	result, err := relay.Copy(x.c.Request.Context(), x.c.Writer, resp, &x.tap)
	return x.relayed(sel, result, err)
}

// amend makes the head of an answer the client's.
func (x *proxyRequest) amend(resp *http.Response, sel *routers.Selection) {
	if isGatewayError(resp.StatusCode) {
		sel.Fail(fmt.Errorf("%w: %s", llmserver.ErrGateway, http.StatusText(resp.StatusCode)))
	}
	if openai.CreatesStored(x.c.Request.URL.Path) {
		x.owners.sniffID(resp, sel.Replica())
	}
	resp.Header.Del(requestIDHeader) // the client gets the one that is in the log
	if x.registry.table.Load().config.DecisionHeaders {
		x.show(resp.Header, sel)
	}
}

// send dispatches the request into the slot. After an error the next attempt may come.
func (x *proxyRequest) send(ctx context.Context, sel *routers.Selection) (resp *http.Response, err error) {
	req := x.request(ctx)
	defer func() {
		if err != nil {
			req.Body.Close() // else the backend does
		}
	}()
	x.phase = phaseFirstByte
	x.dispatched = time.Now()
	x.model.metrics.overhead.Observe((x.dispatched.Sub(x.ready) - x.payload.Waited).Seconds())
	if resp, err = sel.Dispatch(req); err == nil {
		if err = x.detectBusy(resp); err != nil {
			sel.Fail(err)
		}
	}
	if err == nil {
		return resp, nil
	}
	if !errors.Is(err, llmserver.ErrStale) {
		x.tried = append(x.tried, sel.Replica())
	}
	if errors.Is(err, llmserver.ErrSendTimeout) {
		x.log.Warn("a replica stopped reading a request before it had all of it",
			"replica", x.replica, "model", x.model.config.ID, "send_s", x.model.config.SendTimeout.Seconds(), "request_id", requestID(x.c))
	}
	x.ready = time.Now().Add(-x.payload.Waited) // what the replica took is not berth's own
	x.upstreamFailed(err)
	return nil, err
}

// relayed takes note of how the answer ended.
func (x *proxyRequest) relayed(sel *routers.Selection, result streaming.Result, err error) error {
	x.told(result)
	if err == nil {
		return nil
	}
	if result.Stalled {
		x.log.Warn("a client was disconnected because it read nothing of its response",
			"send_timeout_s", x.registry.table.Load().config.HTTP.SendTimeout.Seconds(), "request_id", requestID(x.c))
	}
	x.upstreamFailed(err)
	sel.Fail(attributeError(result, err))
	if result.Started {
		x.abort(err)
	}
	return err
}

// relaying returns how a response to a request for a path is passed on.
func (s *Server) relaying(path string, keepAlive time.Duration) streaming.Relay {
	return streaming.Relay{
		WriteTimeout: s.registry.table.Load().config.HTTP.SendTimeout,
		KeepAlive:    keepAlive,
		Anthropic:    openai.IsAnthropicPath(path),
	}
}

// sent gives the body's memory back as soon as nobody needs it: an answer has begun, so there will be no
// other attempt. What the replica has yet to read is kept for as long as that takes.
func (x *proxyRequest) sent() {
	x.payload.Text = nil
	x.body.Release()
}

// request is the client's request as the replica is to see it. Header and URL are the client's own, of which
// nothing else is needed any more; attempts share them, and backends change neither.
func (x *proxyRequest) request(ctx context.Context) *http.Request {
	in := x.c.Request
	streaming.TrimRequestHeader(in.Header)
	out := &http.Request{
		Method:        in.Method,
		URL:           in.URL,
		Header:        x.tracing.inject(ctx, in.Header),
		Body:          x.body.NewReader(),
		ContentLength: x.body.Size(),
	}
	if prefix := openai.VersionPrefix(in.URL.Path); prefix != "" || in.URL.ForceQuery { // an empty query is none
		out.URL = &url.URL{Path: prefix + in.URL.Path, RawQuery: in.URL.RawQuery}
		if in.URL.RawPath != "" {
			out.URL.RawPath = prefix + in.URL.RawPath
		}
	}
	return out.WithContext(ctx)
}
