package ingress

import (
	"cmp"
	"errors"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"berth/ingress/telemetry"
	"berth/internal/body"
	"berth/internal/openai"
	"berth/llmserver"
	"berth/routers"
	"berth/streaming"
)

// proxyRequest is one request for a replica, from its header to the end of its response. All of its
// methods run on the request's own goroutine.
//
// What metrics and logs report about it is in record, which the request's state owns and which
// outlives it; the other fields are what it works with.
type proxyRequest struct {
	*Server
	c      *gin.Context
	record *telemetry.Request

	allowed time.Duration // the client's own timeout for the whole request; 0 if it set none

	model   *model     // nil until it is found in the body
	body    *body.Body // nil until it has been read
	payload routers.Payload
	ready   time.Time // when berth's own work on the next attempt began: see dispatch

	// What earlier attempts leave to the retry decision.
	tried   []*llmserver.Replica // excluded from further attempts
	broken  bool                 // a connection broke before a response: once is retried, twice is not
	refusal *http.Response       // the last response of an engine that is too busy, buffered

	span telemetry.Span // of the current attempt
}

// newProxyRequest starts a proxied request in the memory of its state. It is released with that
// state.
func (s *requestState) newProxyRequest(server *Server, c *gin.Context, phase string) *proxyRequest {
	x := &s.proxied
	x.Server, x.c, x.record = server, c, &s.record
	x.record.Proxied, x.record.Phase = true, phase
	return x
}

// proxy serves a POST whose body names a model. It blocks until the response has been relayed, an
// error has been written, or the client has disconnected; it panics with http.ErrAbortHandler if a
// response was truncated.
//
// No method below this one writes a status of its own: errors come back here as values, and fail
// writes the one response of this request. Only relays write otherwise, and after a relay has
// started there is no error response any more, but an abort.
func (s *Server) proxy(c *gin.Context) {
	x := stateOf(c).newProxyRequest(s, c, telemetry.PhaseBody)
	defer x.releaseBody() // also after a panic: the memory is counted against a budget
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

// serve makes attempts, one after the other, until one has given the client a response or no
// further one is allowed. It returns the errors of all failed attempts.
//
// An attempt has released its slot when it returns, so that a request holds one slot at most,
// retries included.
func (x *proxyRequest) serve() error {
	// ctx ends with the request's total timeout and with the client's connection. Whether the
	// has disconnected is read from the request's own context, which the timeout does not end.
	ctx, cancel := withTotalTimeout(x.c.Request.Context(), x.record.Start, x.model.config.TotalTimeout, x.allowed)
	defer cancel()
	var failed error
	for n, more := 1, true; more; n++ {
		err := x.attempt(ctx)
		if err == nil {
			return nil
		}
		failed, more = x.nextAttempt(n, err, failed)
	}
	return failed
}

// recordUpstreamError counts an attempt that failed at a replica, per attempt rather than per
// request, so that failures behind a successful retry show too. Failures caused by the client's
// disconnect or by berth's own exhaustion are not the replica's.
func (x *proxyRequest) recordUpstreamError(err error) {
	if clientGone(x.c.Request.Context(), err) || errors.Is(err, llmserver.ErrExhausted) {
		return
	}
	phase := x.record.Phase
	if errors.Is(err, llmserver.ErrNoConnection) {
		phase = telemetry.PhaseConnect
	}
	x.model.metrics.CountUpstreamError(phase)
	if x.span.Recording() {
		x.span.SetError(phase + ": " + toAPIError(err).code)
	}
}

// fail ends the request with an error response. A client that has disconnected gets an abort
// instead: it may have closed only its sending side, and must not take an empty response for a
// complete one. The exception is a client that stopped sending its body, which gets a 408.
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
			a.retryAfter = cmp.Or(jitter(x.model.router.RetryAfter()), a.retryAfter)
		}
		a.respond(x.c)
	}
}

// abort resets the client's connection, or its HTTP/2 stream, so that a truncated response does not
// look complete. It panics with http.ErrAbortHandler, the only way to make net/http do that. The
// deferred functions of all frames above run as usual: the slot is released, the body's memory is
// freed and the request is recorded.
func (x *proxyRequest) abort(err error) {
	x.record.Truncated, x.record.ErrorCode = true, toAPIError(err).code
	if clientGone(x.c.Request.Context(), err) {
		x.record.ErrorCode = codeGone
		if !x.c.Writer.Written() {
			x.record.Status = statusClientGone
		}
	}
	panic(http.ErrAbortHandler)
}

// relayFor returns the relay for a response to a request for that path.
func (s *Server) relayFor(path string, keepAlive time.Duration) streaming.Relay {
	return streaming.Relay{
		WriteTimeout: s.registry.table.Load().config.HTTP.SendTimeout,
		KeepAlive:    keepAlive,
		Anthropic:    openai.IsAnthropicPath(path),
	}
}
