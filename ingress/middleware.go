package ingress

import (
	"net/http"
	"runtime/debug"
	"strings"

	"github.com/gin-gonic/gin"

	"berth/ingress/telemetry"
	"berth/internal/http1"
	"berth/internal/openai"
	"berth/llmserver"
)

// instrument is the outermost middleware. It begins the record of a request and reports the record
// exactly once, after a panic too: aborted streams end by a panic, and operators need to see them.
//
// The record is reported before the state is released. The slot and the body have been released by
// then, because their defers are on inner frames.
func (s *Server) instrument(c *gin.Context) {
	state, returned := newRequestState(c), false
	pattern := route(c)
	c.Request = s.telemetry.Begin(&state.record, c.Request, pattern, unloggedRoutes[pattern])
	defer func() {
		if state.record.Status == 0 {
			state.record.Status = state.Status()
		}
		s.telemetry.Record(&state.record)
		if returned {
			state.release(c)
		}
	}()
	c.Next()
	returned = true
}

// recoverPanic turns a panic into an error response. If the response has begun, it panics with
// http.ErrAbortHandler instead, and net/http aborts the connection or stream: had the handler just
// returned, net/http would end the truncated response as if complete.
//
// Handlers abort on purpose with http.ErrAbortHandler, which passes without a log line.
func (s *Server) recoverPanic(c *gin.Context) {
	defer func() {
		switch cause := recover(); {
		case cause == nil:
			return
		case cause == http.ErrAbortHandler:
			panic(cause)
		default:
			s.log.Error("panic while handling a request", "panic", cause, "request_id", requestID(c), "stack", string(debug.Stack()))
			if c.Writer.Written() {
				stateOf(c).record.ErrorCode = internalError
				panic(http.ErrAbortHandler)
			}
			rejectUnread(c, errInternal) // the body may be unread
		}
	}()
	c.Next()
}

// setRequestID assigns the request's ID and echoes it to the client: the client's own ID if safe to
// log, else a new one.
func (s *Server) setRequestID(c *gin.Context) {
	values := c.Request.Header[requestIDHeader]
	if len(values) == 0 || !telemetry.LoggableID(values[0]) {
		values = []string{llmserver.NewUUID().String()}
		c.Request.Header[requestIDHeader] = values
	}
	c.Writer.Header()[requestIDHeader] = values[:1:1] // one slice for both headers
	stateOf(c).record.ID = values[0]
}

// boundHeader rejects a request with too large a header.
func boundHeader(c *gin.Context) {
	if http1.HeaderTooLarge(c.Request) {
		rejectUnread(c, errHeaderTooLarge)
		c.Abort()
	}
}

// route returns the metric label of a request's path: one of a fixed set, without /v1.
func route(c *gin.Context) string {
	p := strings.TrimPrefix(c.Request.URL.Path, "/v1")
	if openai.IsInferencePath(c.Request.URL.Path) {
		return p
	}
	switch p {
	case "/models", "/livez", "/readyz", "/health", "/metrics":
		return p
	}
	if strings.HasPrefix(p, "/models/") {
		return "/models/{id}"
	}
	if strings.HasPrefix(p, "/responses/") {
		return "/responses/{id}"
	}
	return "other"
}
