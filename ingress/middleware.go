package ingress

import (
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"berth/internal/http1"
	"berth/llmserver"
)

const requestIDHeader = "X-Request-Id"

// requestState is what handlers leave behind of a request for the middleware outside them. It is the context's writer, where it is
// found without a map of keys for each request. It is used again for another request after observe has returned.
type requestState struct {
	gin.ResponseWriter
	below http.ResponseWriter // the server's own
	began time.Time           // when its head was in

	key      *apiKey       // nil where none is asked for
	model    string        // the configured id
	metrics  *modelMetrics // of the model, or of requests without one
	labels   [2]string     // of the series that is being looked for
	exchange proxyRequest  // of a request that is passed on; its Server is nil until then

	status int    // in place of the one that was written, unless 0
	code   string // of the error by which berth ended the request, or codeGone
	cut    bool   // that was an abnormal end
}

// stateOf is that of a request which observe has let in.
func stateOf(c *gin.Context) *requestState { return c.Writer.(*requestState) }

var visits = sync.Pool{New: func() any { return new(requestState) }}

func enter(c *gin.Context) *requestState {
	v := visits.Get().(*requestState)
	v.ResponseWriter, v.below, v.began = c.Writer, c.Writer, time.Now()
	if w, ok := c.Writer.(interface{ Unwrap() http.ResponseWriter }); ok {
		v.below = w.Unwrap()
	}
	c.Writer = v
	return v
}

// leave ends the visit. After a panic it is not called, as who knows what is still at work.
func (v *requestState) leave(c *gin.Context) {
	c.Writer = v.ResponseWriter
	*v = requestState{}
	visits.Put(v)
}

// A response controller looks for these in every wrapper in turn.
func (v *requestState) Unwrap() http.ResponseWriter { return v.below }
func (v *requestState) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(v.below).SetReadDeadline(t)
}
func (v *requestState) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(v.below).SetWriteDeadline(t)
}

// FlushError is Flush with its error, which gin's drops: a client that reads nothing may be noticed by it alone.
func (v *requestState) FlushError() error {
	v.WriteHeaderNow()
	return http.NewResponseController(v.below).Flush()
}

// observe counts the request when it is over, however that comes about.
func (s *Server) observe(c *gin.Context) {
	v, whole := enter(c), false
	v.metrics = s.metrics.noModel
	defer func() {
		took, at := time.Since(v.began), route(c)
		v.observed(at, v.answered(), took)
		if s.access.on.Load() && !probes[at] {
			s.access.record(c, took)
		}
		if whole {
			v.leave(c)
		}
	}()
	c.Next()
	whole = true
}

// answered is the status by which the request was answered, or left.
func (v *requestState) answered() int {
	if v.status != 0 {
		return v.status
	}
	return v.Status()
}

// recover turns a panic into an answer, or, once an answer has begun, into an abnormal end of it,
// so that it does not look complete. net/http closes the connection, or resets the stream, for
// http.ErrAbortHandler alone.
func (s *Server) recover(c *gin.Context) {
	defer func() {
		switch cause := recover(); {
		case cause == nil:
			return
		case cause == http.ErrAbortHandler:
			panic(cause)
		default:
			s.log.Error("panic while handling a request", "panic", cause, "request_id", requestID(c), "stack", string(debug.Stack()))
			if c.Writer.Written() {
				stateOf(c).code = internalError
				panic(http.ErrAbortHandler)
			}
			rejectUnread(c, errInternal) // who knows how much of the body was read
		}
	}()
	c.Next()
}

// identify gives the request an id, the client's own if it is fit to be logged, and
// echoes it.
func (s *Server) identify(c *gin.Context) {
	values := c.Request.Header[requestIDHeader]
	if len(values) == 0 || !saneID(values[0]) {
		values = []string{llmserver.NewUUID().String()}
		c.Request.Header[requestIDHeader] = values
	}
	c.Writer.Header()[requestIDHeader] = values[:1:1] // one slice for both
}

// boundHeader refuses a request whose header is too large.
func boundHeader(c *gin.Context) {
	if http1.HeaderTooLarge(c.Request) {
		rejectUnread(c, errHeaderTooLarge)
		c.Abort()
	}
}

func requestID(c *gin.Context) string { return c.GetHeader(requestIDHeader) }

// saneID admits 1 to 128 visible ASCII characters.
func saneID(id string) bool {
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return len(id) > 0 && len(id) <= 128
}
