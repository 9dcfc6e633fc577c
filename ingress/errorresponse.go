package ingress

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"berth/internal/openai"
)

// lingerTimeout is how long the body of a rejected request is read. Closing a connection while
// bytes still arrive resets it, and the client may lose the response.
const lingerTimeout = 500 * time.Millisecond

// rejectUnread responds with the API error of err to a request with an unread or partly read body.
func rejectUnread(c *gin.Context, err error) {
	leaveUnread(c)
	writeError(c, err)
}

// leaveUnread closes an HTTP/1.1 connection after this request if the request has a body. Without
// that, net/http would read the body, however slow, before and after the response.
func leaveUnread(c *gin.Context) {
	if c.Request.ContentLength != 0 && c.Request.ProtoMajor == 1 {
		c.Header("Connection", "close")
		_ = http.NewResponseController(c.Writer).SetReadDeadline(time.Now().Add(lingerTimeout)) // fails on a closed connection only
	}
}

// writeError responds with the API error of err.
func writeError(c *gin.Context, err error) { toAPIError(err).respond(c) }

// respond sends the error to a client of the public listener and records the code for logs and
// metrics.
func (a apiError) respond(c *gin.Context) {
	stateOf(c).record.ErrorCode = a.code
	a.write(c.Writer, c.Request)
}

// object returns the error object to render.
func (a apiError) object() openai.Error {
	return openai.Error{Status: a.status, Type: a.kind, Code: a.code, Param: a.param, Message: a.message}
}

// write sends the error in the form of the requested API, OpenAI's or Anthropic's. Handlers of the
// admin listener, which have no requestState, call it directly.
func (a apiError) write(w http.ResponseWriter, r *http.Request) {
	text := a.object().JSON()
	if openai.IsAnthropicPath(r.URL.Path) {
		text = a.object().AnthropicJSON(r.Header.Get(requestIDHeader))
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	if a.retryAfter == noRetry {
		h.Set("X-Should-Retry", "false")
	} else if a.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(a.retryAfter.Seconds()))))
		h.Set("Retry-After-Ms", strconv.FormatInt(a.retryAfter.Milliseconds(), 10))
	}
	w.WriteHeader(a.status)
	w.Write(text) // dropped by net/http for HEAD
}
