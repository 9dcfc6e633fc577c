package ingress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"berth/llmserver"
	"berth/routers"
	"berth/streaming"
)

// exchange is one proxied request, from its head to the end of its answer. All
// of it runs on the request's own goroutine.
type exchange struct {
	*Server
	c     *gin.Context
	began time.Time

	allowed time.Duration // by the client, for all of it; 0 if it does not say
	stream  bool          // events are asked for

	model   *model
	body    *body
	payload routers.Payload
	ready   time.Time // when the body was in and berth's own work began
	phase   string    // how far it has come

	tried   []*llmserver.Replica // not to be chosen again
	broken  bool                 // a connection broke once before any answer
	refusal *http.Response       // the last one by which an engine said that it is busy

	tap  streaming.Tap // on the answer
	span trace.Span    // of the attempt under way
	trail
}

// proxy serves a POST whose body names a model.
func (s *Server) proxy(c *gin.Context) {
	x := &exchange{Server: s, c: c, began: time.Now(), phase: phaseBody}
	defer x.release()
	if s.access.on.Load() {
		c.Set(keyExchange, x)
	}
	var err error
	if x.allowed, err = requestTimeout(c.Request.Header); err == nil {
		err = x.read()
	}
	if err == nil {
		err = x.serve()
	}
	if err != nil {
		x.fail(err)
	}
}

// release logs the request and gives back the body's memory, also after a panic.
func (x *exchange) release() {
	x.decisionLog.record(x)
	if x.body != nil {
		x.body.Release()
	}
}

// serve makes attempts, one at a time, until one has given the client its
// answer or no further one is allowed.
func (x *exchange) serve() error {
	defer func() {
		if x.payload.Waited > 0 {
			x.metrics.wait.WithLabelValues(x.model.config.ID).Observe(x.payload.Waited.Seconds())
		}
	}()
	ctx, stop := x.within(x.c.Request.Context())
	defer stop()
	var failed error // what all attempts so far came to
	for n := 1; ; n++ {
		err := x.attempt(ctx)
		if err == nil {
			return nil
		}
		reason := x.again(err)
		last := reason == "" || n >= x.model.config.MaxAttempts
		if _, none := errors.AsType[*routers.UnavailableError](err); last && x.refusal != nil && (none || errors.Is(err, llmserver.ErrBusy)) {
			return x.passRefusal()
		}
		if failed != nil {
			err = fmt.Errorf("%w; %w", failed, err)
		}
		if last {
			return err
		}
		x.metrics.retries.WithLabelValues(x.model.config.ID, reason).Inc()
		failed = err
	}
}

// attempt chooses a replica, dispatches the request into the slot on it and
// passes the answer on, all while ctx lasts. The slot is given back before it returns, so that a request never
// holds two.
func (x *exchange) attempt(ctx context.Context) error {
	x.phase = phaseWaiting
	_, choosing := x.tracing.begin(ctx, "choose", trace.SpanKindInternal)
	sel, err := x.model.router.Choose(ctx, &x.payload, x.tried...)
	x.chose(choosing, sel, err)
	if err != nil {
		return late(err)
	}
	defer sel.Release()
	x.attempts, x.replica, x.rank, x.matched = x.attempts+1, sel.Replica().ID(), sel.Rank(), sel.Matched()
	x.metrics.reservations.WithLabelValues(x.model.config.ID, "accepted").Inc()
	ctx, x.span = x.tracing.begin(ctx, "attempt", trace.SpanKindClient)
	defer x.attempted(x.span)
	var quiet *silence
	if x.stream {
		ctx, quiet = watchSilence(ctx, &x.model.config)
		defer quiet.stop()
	}
	req := x.request(ctx)
	defer req.Body.Close()
	x.phase = phaseFirstByte
	x.dispatched = time.Now()
	x.metrics.overhead.WithLabelValues(x.model.config.ID).Observe((x.dispatched.Sub(x.ready) - x.payload.Waited).Seconds())
	resp, err := sel.Dispatch(req)
	if err == nil {
		if err = x.refused(resp); err != nil {
			sel.Fail(err)
		}
	}
	if err != nil {
		if !errors.Is(err, llmserver.ErrStale) {
			x.tried = append(x.tried, sel.Replica())
		}
		x.ready = time.Now().Add(-x.payload.Waited) // what the replica took is not berth's own
		x.upstreamFailed(err)
		return err
	}
	quiet.over(resp)
	if gatewayError(resp.StatusCode) {
		sel.Fail(fmt.Errorf("%w: %s", llmserver.ErrGateway, http.StatusText(resp.StatusCode)))
	}
	x.phase = phaseStreaming
	x.sent()
	if strings.HasSuffix(req.URL.Path, "/responses") {
		x.holders.listen(resp, sel.Replica())
	}
	resp.Header.Del(requestIDHeader) // the client gets the one that is in the log
	if x.registry.table.Load().config.DecisionHeaders {
		x.show(resp.Header, sel)
	}
	result, err := x.relaying().Copy(x.c.Request.Context(), x.c.Writer, resp, &x.tap)
	x.told(result)
	if err == nil {
		return nil
	}
	x.upstreamFailed(err)
	sel.Fail(verdict(result, err))
	if result.Started {
		x.abort(err)
	}
	return err
}

// relaying is how the answer is to be passed on.
func (x *exchange) relaying() *streaming.Relay {
	relay := &x.relay
	if anthropic(x.c.Request.URL.Path) {
		relay = &x.messages
	}
	if x.model.config.StreamKeepAlive == 0 {
		return relay
	}
	with := *relay
	with.KeepAlive = x.model.config.StreamKeepAlive
	return &with
}

// sent gives the body's memory back as soon as nobody needs it: an answer has begun, so there will be no
// other attempt. What the replica has yet to read is kept for as long as that takes.
func (x *exchange) sent() {
	x.payload.Text = nil
	x.body.Release()
}

// request is the client's request as the replica is to see it. Header and URL are the client's own, of which
// nothing else is needed any more; attempts share them, and backends change neither.
func (x *exchange) request(ctx context.Context) *http.Request {
	in := x.c.Request
	streaming.TrimRequestHeader(in.Header)
	out := &http.Request{
		Method:        in.Method,
		URL:           in.URL,
		Header:        x.tracing.inject(ctx, in.Header),
		Body:          x.body.NewReader(),
		ContentLength: x.body.Size(),
	}
	if prefix := prefixOf(in.URL.Path); prefix != "" || in.URL.ForceQuery { // an empty query is none
		out.URL = &url.URL{Path: prefix + in.URL.Path, RawQuery: in.URL.RawQuery}
		if in.URL.RawPath != "" {
			out.URL.RawPath = prefix + in.URL.RawPath
		}
	}
	return out.WithContext(ctx)
}

// again says why another attempt is allowed after err; empty if none is. The
// replica must have seen nothing of the request; or, once, the connection may have broken
// before any byte of an answer.
func (x *exchange) again(err error) string {
	switch {
	case x.c.Request.Context().Err() != nil:
		return ""
	case errors.Is(err, llmserver.ErrNoConnection):
		return "no_connection"
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

// upstreamFailed counts an attempt that a replica failed; what the client's
// leaving brought about is none.
func (x *exchange) upstreamFailed(err error) {
	if clientGone(x.c.Request.Context(), err) {
		return
	}
	phase := x.phase
	if errors.Is(err, llmserver.ErrNoConnection) {
		phase = phaseConnect
	}
	x.metrics.upstreamErrors.WithLabelValues(x.model.config.ID, phase).Inc()
	if x.span.IsRecording() {
		x.span.SetStatus(codes.Error, phase+": "+answerFor(err).code)
	}
}

// fail ends the exchange with an error answer. A client that has gone gets none: it may have closed
// only its sending half, and must not take silence for an answer.
func (x *exchange) fail(err error) {
	switch {
	case !errors.Is(err, errBodySilent) && clientGone(x.c.Request.Context(), err):
		x.abort(err)
	case x.body == nil:
		refuse(x.c, err)
	default:
		a := answerFor(err)
		if errors.Is(err, routers.ErrLineFull) || errors.Is(err, routers.ErrWaitOver) || errors.Is(err, errOverInLine) {
			a.retryAfter = cmp.Or(spread(x.model.router.RetryAfter()), a.retryAfter)
		}
		a.give(x.c)
	}
}

// spread keeps clients that were turned away together from coming back together: up to a fifth more
// or less, within the bounds of 1 to 60 s. Zero stays zero.
func spread(d time.Duration) time.Duration {
	if d == 0 {
		return 0
	}
	d += time.Duration((rand.Float64() - 0.5) * 0.4 * float64(d))
	return min(max(d, time.Second), time.Minute)
}

// abort ends the client's connection, or its stream, so that the answer does
// not look complete.
func (x *exchange) abort(err error) {
	x.c.Set(keyCut, true)
	x.c.Set(keyCode, answerFor(err).code)
	if clientGone(x.c.Request.Context(), err) {
		x.c.Set(keyCode, codeGone)
		x.metrics.aborts.WithLabelValues(x.c.GetString(keyModel), x.phase).Inc()
		if !x.c.Writer.Written() {
			x.c.Set(keyStatus, statusClientGone)
		}
	}
	panic(http.ErrAbortHandler)
}
