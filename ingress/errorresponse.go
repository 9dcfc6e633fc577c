package ingress

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"berth/internal/openai"
)

// lingerTimeout is how long the body of a rejected request is read. A connection that is closed
// while bytes still arrive is reset, and the client may lose the response.
const lingerTimeout = 500 * time.Millisecond

// rejectUnread responds to a request whose body, if any, was not read to its end.
func rejectUnread(c *gin.Context, err error) {
	leaveUnread(c)
	writeError(c, err)
}

// leaveUnread closes an HTTP/1.1 connection after this request if the request has a body. net/http
// would read the body, however slow, before and after it writes the response.
func leaveUnread(c *gin.Context) {
	if c.Request.ContentLength != 0 && c.Request.ProtoMajor == 1 {
		c.Header("Connection", "close")
		_ = http.NewResponseController(c.Writer).SetReadDeadline(time.Now().Add(lingerTimeout)) // fails on a closed connection only
	}
}

// writeError responds with the API error of err.
func writeError(c *gin.Context, err error) { toAPIError(err).respond(c) }

// respond writes the error to a client, and records its code for logs and metrics.
func (a apiError) respond(c *gin.Context) {
	stateOf(c).record.ErrorCode = a.code
	a.write(c.Writer, c.Request)
}

// object returns the error object that a is rendered into.
func (a apiError) object() openai.Error {
	return openai.Error{Status: a.status, Type: a.kind, Code: a.code, Param: a.param, Message: a.message}
}

// write writes the error in the form of the API that the request is for.
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
	w.Write(text) // net/http leaves it out for HEAD
}
