package ingress

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"berth/internal/body"
	"berth/llmserver"
	"berth/routers"
	"berth/streaming"
)

// proxyRequest is one proxied request, from its head to the end of its answer. All
// of it runs on the request's own goroutine.
type proxyRequest struct {
	*Server
	c     *gin.Context
	visit *requestState
	began time.Time

	allowed time.Duration // by the client, for all of it; 0 if it does not say
	stream  bool          // events are asked for

	model   *model
	body    *body.Body
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

// exchanging begins the exchange of a visit, which lends it its memory.
func (v *requestState) exchanging(s *Server, c *gin.Context, phase string) *proxyRequest {
	x := &v.exchange
	x.Server, x.c, x.visit, x.began, x.phase = s, c, v, v.began, phase
	return x
}

// proxy serves a POST whose body names a model.
func (s *Server) proxy(c *gin.Context) {
	x := stateOf(c).exchanging(s, c, phaseBody)
	defer x.release()
	var err error
	if x.allowed, err = requestTimeout(c.Request.Header); err == nil {
		err = x.prepare()
	}
	if err == nil {
		err = x.serve()
	}
	if err != nil {
		x.fail(err)
	}
}

// release logs the request and gives back the body's memory, also after a panic.
func (x *proxyRequest) release() {
	x.decisionLog.record(x)
	if x.body != nil {
		x.body.Release()
	}
}

// serve makes attempts, one at a time, until one has given the client its
// answer or no further one is allowed.
func (x *proxyRequest) serve() error {
	defer func() {
		if x.payload.Waited > 0 {
			x.model.metrics.wait.Observe(x.payload.Waited.Seconds())
		}
	}()
	ctx, stop := withTotalTimeout(x.c.Request.Context(), x.began, x.model.config.TotalTimeout, x.allowed)
	defer stop()
	var failed error // what all attempts so far came to
	for n, again := 1, true; again; n++ {
		err := x.attempt(ctx)
		if err == nil {
			return nil
		}
		failed, again = x.after(n, err, failed)
	}
	return failed
}

// after is what attempt n, which ended with err, and the ones before it, which failed, have come to together, and
// whether there may be another.
func (x *proxyRequest) after(n int, err, failed error) (all error, again bool) {
	reason := x.again(err)
	last := reason == "" || n >= x.model.config.MaxAttempts
	if _, none := errors.AsType[*routers.UnavailableError](err); last && x.refusal != nil && (none || errors.Is(err, llmserver.ErrBusy)) {
		return x.writeBusy(), false
	}
	if failed != nil {
		err = fmt.Errorf("%w; %w", failed, err)
	}
	if !last {
		x.model.metrics.retries.WithLabelValues(reason).Inc()
	}
	return err, !last
}

// again says why another attempt is allowed after err; empty if none is. The
// replica must have seen nothing of the request; or, once, the connection may have broken
// before any byte of an answer.
func (x *proxyRequest) again(err error) string {
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

// upstreamFailed counts an attempt that a replica failed; what the client's
// leaving or this process's own exhaustion brought about is none.
func (x *proxyRequest) upstreamFailed(err error) {
	if clientGone(x.c.Request.Context(), err) || errors.Is(err, llmserver.ErrExhausted) {
		return
	}
	phase := x.phase
	if errors.Is(err, llmserver.ErrNoConnection) {
		phase = phaseConnect
	}
	x.model.metrics.upstreamErrors.WithLabelValues(phase).Inc()
	if x.span.IsRecording() {
		x.span.SetStatus(codes.Error, phase+": "+toAPIError(err).code)
	}
}

// fail ends the exchange with an error answer. A client that has gone gets none: it may have closed
// only its sending half, and must not take silence for an answer.
func (x *proxyRequest) fail(err error) {
	switch {
	case !errors.Is(err, body.ErrIdleTimeout) && clientGone(x.c.Request.Context(), err):
		x.abort(err)
	case x.body == nil:
		rejectUnread(x.c, err)
	default:
		a := toAPIError(err)
		if errors.Is(err, llmserver.ErrExhausted) {
			x.c.Header("Connection", "close") // gives a descriptor back
		}
		if errors.Is(err, routers.ErrQueueFull) || errors.Is(err, routers.ErrQueueTimeout) || errors.Is(err, errQueueDeadline) {
			a.retryAfter = cmp.Or(spread(x.model.router.RetryAfter()), a.retryAfter)
		}
		a.respond(x.c)
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
func (x *proxyRequest) abort(err error) {
	x.visit.cut, x.visit.code = true, toAPIError(err).code
	if clientGone(x.c.Request.Context(), err) {
		x.visit.code = codeGone
		x.visit.metrics.aborts.WithLabelValues(x.phase).Inc()
		if !x.c.Writer.Written() {
			x.visit.status = statusClientGone
		}
	}
	panic(http.ErrAbortHandler)
}
