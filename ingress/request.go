package ingress

import (
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"berth/ingress/telemetry"
	"berth/internal/body"
	"berth/internal/openai"
	"berth/llmserver"
	"berth/routers"
	"berth/streaming"
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

// stateOf returns the state of a request that instrument has let in.
func stateOf(c *gin.Context) *requestState { return c.Writer.(*requestState) }

// requestID returns the ID that setRequestID chose.
func requestID(c *gin.Context) string { return stateOf(c).record.ID }

// keyOf returns the key that a request was admitted with; nil if no key is required.
func keyOf(c *gin.Context) *apiKey { return stateOf(c).key }

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
