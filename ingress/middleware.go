package ingress

import (
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"berth/ingress/telemetry"
	"berth/internal/http1"
	"berth/llmserver"
)

const requestIDHeader = "X-Request-Id"

// requestState is the state of one request from the first middleware to the last deferred function.
// It wraps gin's ResponseWriter and takes its place in the context, where handlers find it without
// gin's map of keys, which would be allocated for each request.
//
// It is pooled. instrument takes it from the pool and returns it when all handlers have returned; a
// request that panicked keeps its own. It also lends proxyRequest its memory, so that a request
// allocates neither. Only the goroutine of the request uses it.
type requestState struct {
	gin.ResponseWriter
	underlying http.ResponseWriter // the server's own, below gin's

	key     *apiKey           // nil if no key is required
	record  telemetry.Request // filled in by handlers, reported by instrument
	proxied proxyRequest      // memory for newProxyRequest; unused for requests that berth answers itself
}

// stateOf returns the state of a request that instrument has let in.
func stateOf(c *gin.Context) *requestState { return c.Writer.(*requestState) }

var requestStates = sync.Pool{New: func() any { return new(requestState) }}

// newRequestState takes a state from the pool and puts it into the context. The time of the request
// starts here: its header has just been read.
func newRequestState(c *gin.Context) *requestState {
	s := requestStates.Get().(*requestState)
	s.ResponseWriter, s.underlying, s.record.Start = c.Writer, c.Writer, time.Now()
	if w, ok := c.Writer.(interface{ Unwrap() http.ResponseWriter }); ok {
		s.underlying = w.Unwrap()
	}
	c.Writer = s
	return s
}

// release returns the state to the pool. It must not be called after a panic: a goroutine or a
// deferred function of an outer frame may still use the state, and would then write into another
// request.
func (s *requestState) release(c *gin.Context) {
	c.Writer = s.ResponseWriter
	*s = requestState{}
	requestStates.Put(s)
}

// http.ResponseController looks for the following methods in each wrapper in turn. Implementing
// them here skips gin's wrapper, which has none of them.

// Unwrap returns the server's own writer.
func (s *requestState) Unwrap() http.ResponseWriter { return s.underlying }

// SetReadDeadline sets the deadline for reading the request.
func (s *requestState) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(s.underlying).SetReadDeadline(t)
}

// SetWriteDeadline sets the deadline for writing the response.
func (s *requestState) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(s.underlying).SetWriteDeadline(t)
}

// FlushError flushes and returns the error, which gin's Flush drops. For a client that reads
// nothing it may be the only sign that it has disconnected.
func (s *requestState) FlushError() error {
	s.WriteHeaderNow()
	return http.NewResponseController(s.underlying).Flush()
}

// instrument is the outermost middleware. It begins the record of a request and reports it at the
// end, exactly once, also when a handler panics: aborted streams end by a panic, and they are the
// ones that operators look for.
//
// The record is reported before the state is released, and everything else of the request (its
// slot, its body) has been released by then, because those defers are on inner frames.
func (s *Server) instrument(c *gin.Context) {
	state, returned := newRequestState(c), false
	at := route(c)
	c.Request = s.telemetry.Begin(&state.record, c.Request, at, probes[at])
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

// recoverPanic turns a panic into an error response. If the response has begun, it aborts the
// connection or the stream instead, so that a truncated response does not look complete: net/http
// does that for http.ErrAbortHandler only, and ends a response normally when a handler returns.
//
// http.ErrAbortHandler itself is how handlers abort on purpose; it passes without a log line.
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

// setRequestID gives the request an ID and echoes it: the client's own if it is safe to log, else a
// new one.
func (s *Server) setRequestID(c *gin.Context) {
	values := c.Request.Header[requestIDHeader]
	if len(values) == 0 || !telemetry.LoggableID(values[0]) {
		values = []string{llmserver.NewUUID().String()}
		c.Request.Header[requestIDHeader] = values
	}
	c.Writer.Header()[requestIDHeader] = values[:1:1] // one slice for both headers
	stateOf(c).record.ID = values[0]
}

// requestID returns the ID that setRequestID chose.
func requestID(c *gin.Context) string { return stateOf(c).record.ID }

// boundHeader rejects a request whose header is too large.
func boundHeader(c *gin.Context) {
	if http1.HeaderTooLarge(c.Request) {
		rejectUnread(c, errHeaderTooLarge)
		c.Abort()
	}
}
