package ingress

import (
	"cmp"
	"errors"

	"github.com/gin-gonic/gin"

	"berth/ingress/telemetry"
	"berth/internal/body"
	"berth/llmserver"
	"berth/routers"
)

// proxy serves a POST whose body names a model. It blocks until the response has been relayed, an
// error has been written, or the client has disconnected; it panics with http.ErrAbortHandler if a
// response was truncated.
//
// No method below this one writes a status of its own: errors come back here as values, and respondError
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
		err = x.serveAttempts()
	}
	if err != nil {
		x.respondError(err)
	}
}

// serveAttempts makes attempts, one after the other, until one has given the client a response or no
// further one is allowed. It returns the errors of all failed attempts.
//
// An attempt has released its slot when it returns, so that a request holds one slot at most,
// retries included.
func (x *proxyRequest) serveAttempts() error {
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
		more, failed = x.nextAttempt(n, err, failed)
	}
	return failed
}

// respondError ends the request with an error response. A client that has disconnected gets an abort
// instead: it may have closed only its sending side, and must not take an empty response for a
// complete one. The exception is a client that stopped sending its body, which gets a 408.
func (x *proxyRequest) respondError(err error) {
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
