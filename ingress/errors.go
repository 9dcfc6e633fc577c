package ingress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"berth/ingress/http1"
	"berth/llmserver"
	"berth/routers"
	"berth/streaming"
)

// Errors that arise in this package, next to those of reading and scanning bodies.
var (
	errUnknownModel   = errors.New("model not found")
	errModelRequired  = errors.New("The request names no 'model', and this server has several; GET /v1/models lists them.")
	errUnknownPath    = errors.New("This server has no such path; see GET /v1/models and POST /v1/chat/completions.")
	errPathNotAllowed = errors.New("This server passes no requests on to this path; if the engines serve it, its operator can name it in extra_paths.")
	errWrongMethod    = errors.New("This path does not answer to this method.")
	errAdminOnly      = errors.New("This call manages the engines; send it to the admin listener, with ?model= where there are several models.")
	errHeaderTooLarge = fmt.Errorf("The header of the request, with its URL, is larger than %d bytes.", http1.MaxHeaderBytes)
	errInternal       = errors.New("The server failed to handle the request.")
)

// statusClientGone is what metrics and logs show for a request whose client left before an answer began; no
// client ever sees it. nginx introduced the number.
const statusClientGone = 499

// busyDelay is the time after which a client may try again where nothing better is known.
const defaultRetryAfter = time.Second

// answer is an error in the form that OpenAI's clients read.
type apiError struct {
	status     int
	kind       string // "type"
	code       string
	param      string        // "" for null
	message    string        // "" for the error's own text
	retryAfter time.Duration // 0 for no advice; never
}

// never tells clients, whose SDKs would try twice more, not to: it would be in vain.
const noRetry time.Duration = -1

// The two kinds of error that OpenAI tells apart: the client's and the server's.
const (
	invalidRequest = "invalid_request_error"
	serverError    = "server_error"
	rateLimit      = "rate_limit_error"
)

// answers is the one table from errors to what the client gets. The first row whose error is in the chain counts.
var errorTable = []struct {
	err error
	apiError
}{
	{errEmptyBody, apiError{400, invalidRequest, "empty_body", "", "", 0}},
	{errNotObject, apiError{400, invalidRequest, "invalid_json", "", "", 0}},
	{errFormBoundary, apiError{400, invalidRequest, "invalid_form", "", "", 0}},
	{errFormBroken, apiError{400, invalidRequest, "invalid_form", "", "", 0}},
	{errFormParts, apiError{400, invalidRequest, "invalid_form", "", "", 0}},
	{errTooDeep, apiError{400, invalidRequest, "invalid_json", "", "", 0}},
	{errDuplicateModel, apiError{400, invalidRequest, "invalid_model", "model", "", 0}},
	{errModelNotString, apiError{400, invalidRequest, "invalid_model", "model", "", 0}},
	{errModelRequired, apiError{400, invalidRequest, "model_required", "model", "", 0}},
	{errTimeout, apiError{400, invalidRequest, "invalid_timeout", "x-request-timeout-seconds", "", 0}},
	{errMissingKey, apiError{401, invalidRequest, "invalid_api_key", "", "", 0}},
	{errWrongKey, apiError{401, invalidRequest, "invalid_api_key", "", "", 0}},
	{errAdminKey, apiError{401, invalidRequest, "invalid_api_key", "", "", 0}},
	{errCrossSite, apiError{403, invalidRequest, "cross_site_request", "", "", 0}},
	{errAdminHost, apiError{403, invalidRequest, "unknown_host", "", "", 0}},
	{errModelNotAllowed, apiError{403, invalidRequest, "model_not_allowed", "model", "", 0}},
	{errKeyLimit, apiError{429, rateLimit, "key_limit_reached", "", "", defaultRetryAfter}},
	{errBodyAborted, apiError{400, invalidRequest, "incomplete_body", "", "", 0}},
	{errAdminOnly, apiError{403, invalidRequest, "admin_only", "", "", 0}},
	{errUnknownModel, apiError{404, invalidRequest, "model_not_found", "model", "", 0}},
	{errNoResponse, apiError{404, invalidRequest, "response_not_found", "response_id", "This server holds no response with that id.", 0}},
	{errOwnerUnknown, apiError{503, serverError, "response_unreachable", "response_id", "", defaultRetryAfter}},
	{errUnknownPath, apiError{404, invalidRequest, "unknown_url", "", "", 0}},
	{errPathNotAllowed, apiError{404, invalidRequest, "unknown_url", "", "", 0}},
	{errWrongMethod, apiError{405, invalidRequest, "method_not_allowed", "", "", 0}},
	{errBodySilent, apiError{408, invalidRequest, "body_timeout", "", "", 0}},
	{errBodyTooLarge, apiError{413, invalidRequest, "request_too_large", "", "", 0}},
	{errHeaderTooLarge, apiError{431, invalidRequest, "header_too_large", "", "", 0}},
	{errContentType, apiError{415, invalidRequest, "unsupported_content_type", "", "", 0}},
	{errContentEncoding, apiError{415, invalidRequest, "unsupported_content_encoding", "", "", 0}},
	{errTooManyConnections, apiError{503, serverError, "too_many_connections", "", "", defaultRetryAfter}},
	{errBudget, apiError{503, serverError, "too_many_bytes_held", "", "", defaultRetryAfter}},

	{routers.ErrQueueFull, apiError{429, rateLimit, "queue_full", "",
		"Every replica is busy and the waiting line is full; try again later.", defaultRetryAfter}},
	{routers.ErrQueueTimeout, apiError{503, serverError, "queue_timeout", "",
		"Every replica stayed busy until the wait was over; try again later.", defaultRetryAfter}},
	{errQueueDeadline, apiError{503, serverError, "queue_timeout", "", errQueueDeadline.Error(), defaultRetryAfter}},
	{routers.ErrClosed, apiError{503, serverError, "model_removed", "model",
		"The model is no longer served here.", noRetry}},
	{streaming.ErrUpstreamBroken, apiError{502, serverError, "upstream_broken", "",
		"The replica broke off before its answer began.", 0}},
	{llmserver.ErrBroken, apiError{502, serverError, "upstream_broken", "",
		"The replica closed the connection before it answered.", 0}},
	{llmserver.ErrSendTimeout, apiError{504, serverError, "upstream_send_timeout", "",
		"The replica stopped reading the request before it had all of it.", 0}},
	{llmserver.ErrTimeout, apiError{504, serverError, "upstream_timeout", "",
		"Nothing was heard of the replica for too long.", 0}},
	{llmserver.ErrNotHTTP, apiError{502, serverError, "upstream_invalid", "",
		"The replica answered with something that is not HTTP.", 0}},
	{llmserver.ErrConnectTimeout, apiError{504, serverError, "upstream_connect_timeout", "",
		"No connection to a replica could be made in time.", defaultRetryAfter}},
	{llmserver.ErrExhausted, apiError{503, serverError, "server_exhausted", "",
		"The server is out of connections; try again later.", defaultRetryAfter}},
}

// answerFor finds what a client is told of err. An error that is in no table is the server's own fault; its text
// stays inside.
func toAPIError(err error) apiError {
	if cut, ok := errors.AsType[*streaming.AbortError](err); ok {
		return apiError{504, serverError, cut.Code, "", cut.Message, 0}
	}
	for _, row := range errorTable {
		if errors.Is(err, row.err) {
			a := row.apiError
			if a.message == "" {
				a.message = err.Error()
			}
			return a
		}
	}
	if _, ok := errors.AsType[*syntaxError](err); ok {
		return apiError{400, invalidRequest, "invalid_json", "", err.Error(), 0}
	}
	if u, ok := errors.AsType[*routers.UnavailableError](err); ok {
		return apiError{503, serverError, "no_replica_available", "", unreachableMessage(u.Error()), defaultRetryAfter}
	}
	if llmserver.Refused(err) {
		return apiError{503, serverError, "no_replica_available", "", unreachableMessage(err.Error()), defaultRetryAfter}
	}
	return apiError{500, serverError, internalError, "", errInternal.Error(), 0}
}

// sentence makes an error's text one for people.
func unreachableMessage(text string) string { return "The model cannot be reached: " + text + "." }

// clientGone tells whether err came about because the client went away.
func clientGone(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, streaming.ErrClientGone)
}

// linger is how long a refused body is read on. A connection closed with bytes still coming in would be reset, and
// the client might lose the answer.
const lingerTimeout = 500 * time.Millisecond

// refuse answers a request whose body, if it has one, is left unread or was not read to its end.
func rejectUnread(c *gin.Context, err error) {
	leaveUnread(c)
	writeError(c, err)
}

// leaveUnread ends an HTTP/1.1 connection with this request if it has a body that nobody reads: the server would else
// read on before it answers, and after it, however slowly the body comes.
func leaveUnread(c *gin.Context) {
	if c.Request.ContentLength != 0 && c.Request.ProtoMajor == 1 {
		c.Header("Connection", "close")
		_ = http.NewResponseController(c.Writer).SetReadDeadline(time.Now().Add(lingerTimeout)) // fails on a closed connection only
	}
}

// fail answers a request with what err stands for.
func writeError(c *gin.Context, err error) { toAPIError(err).respond(c) }

// give answers a client's request, and leaves behind why.
func (a apiError) respond(c *gin.Context) {
	stateOf(c).code = a.code
	a.write(c.Writer, c.Request)
}

// write sends the answer.
func (a apiError) write(w http.ResponseWriter, r *http.Request) {
	body := a.openAI()
	if anthropic(r.URL.Path) {
		body = a.anthropic(r.Header.Get(requestIDHeader))
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Sprintf("BUG: an error body does not encode: %v", err))
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
	w.Write(text) // for HEAD net/http leaves it out
}
