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

// proxy serves a POST with a model in its body. It blocks until the response has been relayed, an
// error has been written, or the client has disconnected. After a truncated response proxy panics
// with http.ErrAbortHandler.
//
// Errors come back here as values, and respondError writes the one error response of the request.
// Relays are the only other writers, and once a relay has started, a failure aborts the connection.
func (s *Server) proxy(c *gin.Context) {
	x := stateOf(c).newProxyRequest(s, c, telemetry.PhaseBody)
	defer x.releaseBody() // also after a panic: the memory is counted against a budget
	defer x.reportLastFailure()
	var err error
	// The timeout header is checked first: a bad one must not cost an upload.
	if x.allowed, err = requestTimeout(c.Request.Header); err == nil {
		err = x.prepare()
	}
	if err == nil {
		x.open()
		defer x.opening.Close() // also after a panic: a comment must not follow the handler's return
		err = x.serveAttempts()
	}
	if err != nil {
		x.respondError(err)
	}
}

// serveAttempts makes attempts, one at a time, until one of them has delivered a response or
// nextAttempt forbids another. x.prepare must have succeeded. The error joins those of all failed
// attempts.
//
// Every attempt has released its slot on return, so a request holds one slot at most, retries
// included.
func (x *proxyRequest) serveAttempts() error {
	// ctx ends with the request's total timeout and with the client's connection. Client
	// disconnects are detected by the request's own context, which the timeout does not end.
	ctx, cancel := withTotalTimeout(x.c.Request.Context(), x.record.Start, x.model.config.TotalTimeout, x.allowed)
	defer cancel()
	x.model.retries.deposit()
	var failed error
	for n, more := 1, true; more; n++ {
		err := x.attempt(ctx)
		if err == nil {
			x.judgeSuspect()
			return nil
		}
		if more, failed = x.nextAttempt(n, err, failed); more {
			x.reportFailure(true)
		}
	}
	return failed
}

// queueFailed reports whether a request failed for lack of a free slot.
func queueFailed(err error) bool {
	return errors.Is(err, routers.ErrQueueFull) || errors.Is(err, routers.ErrOverloaded) ||
		errors.Is(err, routers.ErrQueueTimeout) || errors.Is(err, errQueueDeadline)
}

// respondError ends the request with an error response; nothing of a response may have been sent.
// For a disconnected client the connection is aborted instead: the client may have closed only the
// sending side, and must not mistake an empty response for a complete one. The exception is a
// client that stopped sending the body, which gets a 408. In an opened stream the error is an
// event, and the connection is aborted, too.
//
// An error before the body was read leaves unread bytes on the connection, so that connection is
// closed after the response. The Retry-After of a full queue is the router's estimate, spread by
// jitter.
func (x *proxyRequest) respondError(err error) {
	opened := x.opening.Close()
	switch {
	case !errors.Is(err, body.ErrIdleTimeout) && clientGone(x.c.Request.Context(), err):
		x.abort(err)
	case opened:
		x.failOpened(err)
	case x.body == nil:
		rejectUnread(x.c, err)
	default:
		a := toAPIError(err)
		if errors.Is(err, llmserver.ErrExhausted) {
			x.c.Header("Connection", "close") // frees a descriptor
		}
		if queueFailed(err) {
			a.retryAfter = cmp.Or(jitter(x.model.router.RetryAfter()), a.retryAfter)
		}
		a.respond(x.c)
	}
}
