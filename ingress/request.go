package ingress

import (
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
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
// A state wraps gin's ResponseWriter and replaces that writer in the context. Handlers find the
// state there without gin's map of keys, which would be allocated for each request.
//
// States are pooled: instrument takes one from the pool and returns it after all handlers have
// returned. A request that panicked keeps its state. The state includes the memory of a
// proxyRequest, so a request allocates neither. Only the goroutine of the request uses a state.
type requestState struct {
	gin.ResponseWriter
	underlying http.ResponseWriter // the server's own, below gin's

	key     *apiKey           // nil if no key is required
	record  telemetry.Request // filled in by handlers, reported by instrument
	proxied proxyRequest      // memory for newProxyRequest; unused for requests that berth serves itself
}

var requestStates = sync.Pool{New: func() any { return new(requestState) }}

// newRequestState takes a state from the pool and puts it into the context. The request's time
// starts here: the header has just been read.
func newRequestState(c *gin.Context) *requestState {
	s := requestStates.Get().(*requestState)
	s.ResponseWriter, s.underlying, s.record.Start = c.Writer, c.Writer, time.Now()
	if w, ok := c.Writer.(interface{ Unwrap() http.ResponseWriter }); ok {
		s.underlying = w.Unwrap()
	}
	c.Writer = s
	return s
}

// release returns the state to the pool. release must not be called after a panic: a goroutine or a
// deferred function of an outer frame might still write to the state, by then the state of another
// request.
func (s *requestState) release(c *gin.Context) {
	c.Writer = s.ResponseWriter
	*s = requestState{}
	requestStates.Put(s)
}

// stateOf returns the state of a request behind instrument. In front of instrument, stateOf panics.
func stateOf(c *gin.Context) *requestState { return c.Writer.(*requestState) }

// requestID returns the ID chosen by setRequestID.
func requestID(c *gin.Context) string { return stateOf(c).record.ID }

// keyOf returns the API key of an admitted request; nil if no key is required.
func keyOf(c *gin.Context) *apiKey { return stateOf(c).key }

// http.ResponseController looks for the following methods in each wrapper in turn. Implementing
// them here skips gin's wrapper, which lacks them.

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

// FlushError flushes and returns the error, which gin's Flush drops. The error may be the only sign
// of a disconnect by a client that reads nothing.
func (s *requestState) FlushError() error {
	s.WriteHeaderNow()
	return http.NewResponseController(s.underlying).Flush()
}

// A proxyRequest is one request for a replica, from the request header to the end of the response.
// All methods run on the request's own goroutine.
//
// record collects the facts for metrics and logs; the requestState owns the record and reports it
// at the end. All other fields are working state of the proxy.
type proxyRequest struct {
	*Server
	c      *gin.Context
	record *telemetry.Request

	allowed time.Duration // the client's own timeout for the whole request; 0: none

	model   *model     // nil until resolveModel
	body    *body.Body // nil until prepare has read it
	payload routers.Payload
	ready   time.Time // when berth's own work on the next attempt began: see dispatch

	stores bool // the request may create something that stays at the replica

	// Results of earlier attempts, for the retry decision.
	tried       []*llmserver.Replica // excluded from further attempts
	retriedOnce bool                 // after a failure in which the replica may have begun
	suspect     *routers.Selection   // of the attempt with that failure: the request may be to blame
	selection   *routers.Selection   // of the latest attempt; nil before
	kept        *http.Response       // the response for the client if no attempt succeeds, buffered
	held        *http.Response       // of this attempt, if Check decides about it
	invalid     bool                 // the response of this attempt is no JSON, though it should be
	failure     *responseFailure     // of the last attempt, to be logged by reportFailure

	opening *streaming.Opening // comments before the response, see open; nil without
	span    telemetry.Span     // of the current attempt
}

// newProxyRequest returns the proxyRequest in the memory of its state; release ends the life of
// both. At most one is created per request.
func (s *requestState) newProxyRequest(server *Server, c *gin.Context, phase string) *proxyRequest {
	x := &s.proxied
	x.Server, x.c, x.record = server, c, &s.record
	x.record.Proxied, x.record.Phase = true, phase
	return x
}

// Fingerprint returns a hash of the prompt, or of the body of a request without one; 0 after the
// release of the body. Other fields do not make a request a different one: clients that send a
// prompt again may number them.
func (x *proxyRequest) Fingerprint() uint64 {
	switch {
	case x.body == nil || x.body.Released():
		return 0
	case len(x.payload.Text) > 0:
		return xxhash.Sum64(x.payload.Text)
	default:
		return xxhash.Sum64(x.body.Bytes())
	}
}

// recordUpstreamError counts a failed attempt at a replica. Counting per attempt rather than per
// request shows failures behind a successful retry, too. A client's disconnect and berth's own
// exhaustion are not counted: the replica did not cause them.
func (x *proxyRequest) recordUpstreamError(err error) {
	if clientGone(x.c.Request.Context(), err) || errors.Is(err, llmserver.ErrExhausted) {
		return
	}
	phase := x.record.Phase
	if errors.Is(err, llmserver.ErrNoConnection) {
		phase = telemetry.PhaseConnect
	}
	x.model.metrics.CountUpstreamError(phase)
	if breaksResponse(err) {
		x.setFailure(err.Error())
	}
	if x.span.Recording() {
		x.span.SetError(phase + ": " + toAPIError(err).code)
	}
}

// countAttempt adds an attempt that has ended to the metrics of its replica.
func (x *proxyRequest) countAttempt(sel *routers.Selection) {
	x.model.metrics.Replica(sel.Replica()).CountAttempt(x.record, sel.Outcome())
}

// abort resets the client's connection or HTTP/2 stream, so a truncated response does not look
// complete. abort never returns: it panics with http.ErrAbortHandler, the only way to make net/http
// reset. The deferred functions of all frames above run as usual: the slot is released, the body's
// memory is freed and the request is recorded.
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

// relayFor returns the relay for the response to a request for path. keepAlive is the interval of
// keep-alive comments in an event stream; 0 for none.
func (s *Server) relayFor(path string, keepAlive time.Duration) streaming.Relay {
	return streaming.Relay{
		WriteTimeout: s.registry.table.Load().config.HTTP.SendTimeout,
		KeepAlive:    keepAlive,
		Anthropic:    openai.IsAnthropicPath(path),
	}
}
