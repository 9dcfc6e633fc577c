package ingress

import (
	"net/http"
	"runtime/debug"
	"time"

	"github.com/gin-gonic/gin"

	"berth/llmserver"
)

const requestIDHeader = "X-Request-Id"

const (
	codeGone      = "client_gone" // stands for a client that left
	internalError = "internal_error"
)

// The keys under which handlers leave what the middleware outside them needs.
const (
	keyModel  = "model"   // the configured id, a string
	keyStatus = "status"  // a status in place of the one that was written
	keyCode   = "code"    // of the error by which berth ended the request, or codeGone
	keyCut    = "cut"     // true if that was an abnormal end
	keyAPIKey = "api key" // an *apiKey, where one is asked for

	keyExchange = "exchange" // the *exchange, while there is an access log
)

// probes are the routes that machines ask again and again; they are not worth a line each, and need no API key.
var probes = map[string]bool{"/livez": true, "/readyz": true, "/health": true, "/metrics": true}

// observe counts the request when it is over, however that comes about.
func (s *Server) observe(c *gin.Context) {
	began := time.Now()
	defer func() {
		took, at := time.Since(began), route(c)
		s.metrics.observed(c.GetString(keyModel), at, status(c), took)
		if s.access.on.Load() && !probes[at] {
			s.access.record(c, took)
		}
	}()
	c.Next()
}

// status is how the request was answered, or left.
func status(c *gin.Context) int {
	if left := c.GetInt(keyStatus); left != 0 {
		return left
	}
	return c.Writer.Status()
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
				c.Set(keyCode, internalError)
				panic(http.ErrAbortHandler)
			}
			fail(c, errInternal)
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
