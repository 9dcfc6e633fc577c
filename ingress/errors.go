package ingress

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"berth/internal/body"
	"berth/internal/http1"
	"berth/internal/openai"
	"berth/llmserver"
	"berth/routers"
	"berth/streaming"
)

// Errors that arise in this package, next to those of reading and scanning bodies.
var (
	errUnknownModel  = errors.New("model not found")
	errModelRequired = errors.New("The request names no 'model', and this server has several; GET /v1/models lists them.")
	errUnknownPath   = errors.New("This server has no such path; see GET /v1/models and POST /v1/chat/completions.")
	errClosedPath    = errors.New("This server passes no requests on to this path; if the engines serve it, its operator can name it in extra_paths.")
	errWrongMethod   = errors.New("This path does not answer to this method.")
	errAdminOnly     = errors.New("This call manages the engines; send it to the admin listener, with ?model= where there are several models.")
	errLargeHeader   = fmt.Errorf("The header of the request, with its URL, is larger than %d bytes.", http1.MaxHeaderBytes)
	errInternal      = errors.New("The server failed to handle the request.")
)

// statusClientGone is what metrics and logs show for a request whose client left before an answer began; no
// client ever sees it. nginx introduced the number.
const statusClientGone = 499

// busyDelay is the time after which a client may try again where nothing better is known.
const busyDelay = time.Second

// answer is an error in the form that OpenAI's clients read.
type answer struct {
	status     int
	kind       string // "type"
	code       string
	param      string        // "" for null
	message    string        // "" for the error's own text
	retryAfter time.Duration // 0 for no advice; never
}

// never tells clients, whose SDKs would try twice more, not to: it would be in vain.
const never time.Duration = -1

// The two kinds of error that OpenAI tells apart: the client's and the server's.
const (
	invalidRequest = openai.TypeInvalidRequest
	serverError    = openai.TypeServer
	rateLimit      = openai.TypeRateLimit
)

// answers is the one table from errors to what the client gets. The first row whose error is in the chain counts.
var answers = []struct {
	err error
	answer
}{
	{openai.ErrEmptyBody, answer{400, invalidRequest, "empty_body", "", "", 0}},
	{openai.ErrNotObject, answer{400, invalidRequest, "invalid_json", "", "", 0}},
	{openai.ErrFormBoundary, answer{400, invalidRequest, "invalid_form", "", "", 0}},
	{openai.ErrFormMalformed, answer{400, invalidRequest, "invalid_form", "", "", 0}},
	{openai.ErrFormParts, answer{400, invalidRequest, "invalid_form", "", "", 0}},
	{openai.ErrTooDeep, answer{400, invalidRequest, "invalid_json", "", "", 0}},
	{openai.ErrDuplicateModel, answer{400, invalidRequest, "invalid_model", "model", "", 0}},
	{openai.ErrModelNotString, answer{400, invalidRequest, "invalid_model", "model", "", 0}},
	{errModelRequired, answer{400, invalidRequest, "model_required", "model", "", 0}},
	{errTimeout, answer{400, invalidRequest, "invalid_timeout", "x-request-timeout-seconds", "", 0}},
	{errNoKey, answer{401, invalidRequest, "invalid_api_key", "", "", 0}},
	{errWrongKey, answer{401, invalidRequest, "invalid_api_key", "", "", 0}},
	{errAdminKey, answer{401, invalidRequest, "invalid_api_key", "", "", 0}},
	{errCrossSite, answer{403, invalidRequest, "cross_site_request", "", "", 0}},
	{errAdminHost, answer{403, invalidRequest, "unknown_host", "", "", 0}},
	{errKeyModel, answer{403, invalidRequest, "model_not_allowed", "model", "", 0}},
	{errKeyFull, answer{429, rateLimit, "key_limit_reached", "", "", busyDelay}},
	{body.ErrAborted, answer{400, invalidRequest, "incomplete_body", "", "", 0}},
	{errAdminOnly, answer{403, invalidRequest, "admin_only", "", "", 0}},
	{errUnknownModel, answer{404, invalidRequest, "model_not_found", "model", "", 0}},
	{errNoResponse, answer{404, invalidRequest, "response_not_found", "response_id", "This server holds no response with that id.", 0}},
	{errResponseAstray, answer{503, serverError, "response_unreachable", "response_id", "", busyDelay}},
	{errUnknownPath, answer{404, invalidRequest, "unknown_url", "", "", 0}},
	{errClosedPath, answer{404, invalidRequest, "unknown_url", "", "", 0}},
	{errWrongMethod, answer{405, invalidRequest, "method_not_allowed", "", "", 0}},
	{body.ErrIdleTimeout, answer{408, invalidRequest, "body_timeout", "", "", 0}},
	{body.ErrTooLarge, answer{413, invalidRequest, "request_too_large", "", "", 0}},
	{errLargeHeader, answer{431, invalidRequest, "header_too_large", "", "", 0}},
	{openai.ErrContentType, answer{415, invalidRequest, "unsupported_content_type", "", "", 0}},
	{openai.ErrContentEncoding, answer{415, invalidRequest, "unsupported_content_encoding", "", "", 0}},
	{errConnections, answer{503, serverError, "too_many_connections", "", "", busyDelay}},
	{body.ErrOverBudget, answer{503, serverError, "too_many_bytes_held", "", "", busyDelay}},

	{routers.ErrQueueFull, answer{429, rateLimit, "queue_full", "",
		"Every replica is busy and the waiting line is full; try again later.", busyDelay}},
	{routers.ErrQueueTimeout, answer{503, serverError, "queue_timeout", "",
		"Every replica stayed busy until the wait was over; try again later.", busyDelay}},
	{errOverInLine, answer{503, serverError, "queue_timeout", "", errOverInLine.Error(), busyDelay}},
	{routers.ErrClosed, answer{503, serverError, "model_removed", "model",
		"The model is no longer served here.", never}},
	{streaming.ErrUpstreamBroken, answer{502, serverError, "upstream_broken", "",
		"The replica broke off before its answer began.", 0}},
	{llmserver.ErrBroken, answer{502, serverError, "upstream_broken", "",
		"The replica closed the connection before it answered.", 0}},
	{llmserver.ErrSendTimeout, answer{504, serverError, "upstream_send_timeout", "",
		"The replica stopped reading the request before it had all of it.", 0}},
	{llmserver.ErrTimeout, answer{504, serverError, "upstream_timeout", "",
		"Nothing was heard of the replica for too long.", 0}},
	{llmserver.ErrNotHTTP, answer{502, serverError, "upstream_invalid", "",
		"The replica answered with something that is not HTTP.", 0}},
	{llmserver.ErrConnectTimeout, answer{504, serverError, "upstream_connect_timeout", "",
		"No connection to a replica could be made in time.", busyDelay}},
	{llmserver.ErrExhausted, answer{503, serverError, "server_exhausted", "",
		"The server is out of connections; try again later.", busyDelay}},
}

// answerFor finds what a client is told of err. An error that is in no table is the server's own fault; its text
// stays inside.
func answerFor(err error) answer {
	if cut, ok := errors.AsType[*streaming.AbortError](err); ok {
		return answer{504, serverError, cut.Code, "", cut.Message, 0}
	}
	for _, row := range answers {
		if errors.Is(err, row.err) {
			a := row.answer
			if a.message == "" {
				a.message = err.Error()
			}
			return a
		}
	}
	if _, ok := errors.AsType[*openai.SyntaxError](err); ok {
		return answer{400, invalidRequest, "invalid_json", "", err.Error(), 0}
	}
	if u, ok := errors.AsType[*routers.UnavailableError](err); ok {
		return answer{503, serverError, "no_replica_available", "", sentence(u.Error()), busyDelay}
	}
	if llmserver.Refused(err) {
		return answer{503, serverError, "no_replica_available", "", sentence(err.Error()), busyDelay}
	}
	return answer{500, serverError, internalError, "", errInternal.Error(), 0}
}

// sentence makes an error's text one for people.
func sentence(text string) string { return "The model cannot be reached: " + text + "." }

// clientGone tells whether err came about because the client went away.
func clientGone(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, streaming.ErrClientGone)
}

// linger is how long a refused body is read on. A connection closed with bytes still coming in would be reset, and
// the client might lose the answer.
const linger = 500 * time.Millisecond

// refuse answers a request whose body, if it has one, is left unread or was not read to its end.
func refuse(c *gin.Context, err error) {
	leaveUnread(c)
	fail(c, err)
}

// leaveUnread ends an HTTP/1.1 connection with this request if it has a body that nobody reads: the server would else
// read on before it answers, and after it, however slowly the body comes.
func leaveUnread(c *gin.Context) {
	if c.Request.ContentLength != 0 && c.Request.ProtoMajor == 1 {
		c.Header("Connection", "close")
		_ = http.NewResponseController(c.Writer).SetReadDeadline(time.Now().Add(linger)) // fails on a closed connection only
	}
}

// fail answers a request with what err stands for.
func fail(c *gin.Context, err error) { answerFor(err).give(c) }

// give answers a client's request, and leaves behind why.
func (a answer) give(c *gin.Context) {
	stateOf(c).code = a.code
	a.write(c.Writer, c.Request)
}

// object returns the error object that a is rendered into.
func (a answer) object() openai.Error {
	return openai.Error{Status: a.status, Type: a.kind, Code: a.code, Param: a.param, Message: a.message}
}

// write sends the answer.
func (a answer) write(w http.ResponseWriter, r *http.Request) {
	text := a.object().JSON()
	if openai.IsAnthropicPath(r.URL.Path) {
		text = a.object().AnthropicJSON(r.Header.Get(requestIDHeader))
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	if a.retryAfter == never {
		h.Set("X-Should-Retry", "false")
	} else if a.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(a.retryAfter.Seconds()))))
		h.Set("Retry-After-Ms", strconv.FormatInt(a.retryAfter.Milliseconds(), 10))
	}
	w.WriteHeader(a.status)
	w.Write(text) // for HEAD net/http leaves it out
}
