package ingress

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"berth/ingress/telemetry"
	"berth/internal/body"
	"berth/internal/http1"
	"berth/internal/openai"
	"berth/llmserver"
	"berth/routers"
	"berth/streaming"
)

// Errors of this package for clients; internal/body and internal/openai declare those of reading
// and scanning a body. Each text is a whole sentence with advice, since most are sent unchanged.
var (
	errUnknownModel       = errors.New("model not found")    // see unknownModel
	errNoResponse         = errors.New("response not found") // the table has the text
	errModelNotAllowed    = errors.New("model not allowed")  // see keyError
	errKeyLimit           = errors.New("key limit reached")  // see keyError
	errModelRequired      = errors.New("The request must name a 'model' because this server has several; GET /v1/models lists them.")
	errUnknownPath        = errors.New("This server has no such path; see GET /v1/models and POST /v1/chat/completions.")
	errPathNotAllowed     = errors.New("This server does not forward requests to this path; if the engines serve it, ask the operator to add it to extra_paths.")
	errWrongMethod        = errors.New("This path does not support this method; use one of those in the Allow header.")
	errAdminOnly          = errors.New("This path manages the engines; send the request to the admin listener, with ?model= if there are several models.")
	errHeaderTooLarge     = fmt.Errorf("The request header, including the URL, is larger than %d bytes; send less.", http1.MaxHeaderBytes)
	errMissingKey         = errors.New("This server requires an API key; send one as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'.")
	errWrongKey           = errors.New("This server does not know this API key; check the key, or ask the operator for one.")
	errAdminKey           = errors.New("The admin listener requires its own key; send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'.")
	errCrossSite          = errors.New("The admin listener rejects requests that a browser sends for a page of another site; send the request without a browser.")
	errAdminHost          = errors.New("The admin listener does not accept this host name; use its IP address, or set admin.api_key_env and send that key.")
	errTimeout            = errors.New("The x-request-timeout-seconds header must be one positive number of seconds.")
	errQueueDeadline      = errors.New("Every replica stayed busy until the request's time limit; try again later, or allow more time.")
	errOwnerUnknown       = errors.New("The replica that holds this response was not found, but some replicas did not respond; try again later.")
	errTooManyConnections = errors.New("This server has reached its limit of client connections; try again later.")
	errInternal           = errors.New("The server failed to handle the request; try again, and report the X-Request-Id to the operator if it fails again.")
)

// Error codes used by other files.
const (
	internalError = telemetry.CodeInternalError
	codeGone      = telemetry.CodeClientGone // only logged and counted
)

// statusClientGone is logged and counted for a disconnect of the client before a response began; no
// client ever receives this status. nginx introduced the number.
const statusClientGone = 499

// defaultRetryAfter is the Retry-After where no better estimate is known.
const defaultRetryAfter = time.Second

// An apiError is an error in the form for clients.
type apiError struct {
	status     int
	kind       string // "type"
	code       string
	param      string        // "" for null
	message    string        // "" for the error's own text
	retryAfter time.Duration // 0 for no advice; or noRetry
}

// noRetry forbids retries that cannot succeed. Without that advice SDKs retry twice.
const noRetry time.Duration = -1

// Values of "type", after OpenAI's API.
const (
	invalidRequest = openai.TypeInvalidRequest
	serverError    = openai.TypeServer
	rateLimit      = openai.TypeRateLimit
)

// errorTable maps errors to API errors. The first row with an error in the chain applies.
var errorTable = []struct {
	err error
	apiError
}{
	{openai.ErrEmptyBody, apiError{400, invalidRequest, "empty_body", "", "", 0}},
	{openai.ErrNotObject, apiError{400, invalidRequest, "invalid_json", "", "", 0}},
	{openai.ErrFormBoundary, apiError{400, invalidRequest, "invalid_form", "", "", 0}},
	{openai.ErrFormMalformed, apiError{400, invalidRequest, "invalid_form", "", "", 0}},
	{openai.ErrFormParts, apiError{400, invalidRequest, "invalid_form", "", "", 0}},
	{openai.ErrTooDeep, apiError{400, invalidRequest, "invalid_json", "", "", 0}},
	{openai.ErrDuplicateModel, apiError{400, invalidRequest, "invalid_model", "model", "", 0}},
	{openai.ErrModelNotString, apiError{400, invalidRequest, "invalid_model", "model", "", 0}},
	{errModelRequired, apiError{400, invalidRequest, "model_required", "model", "", 0}},
	{errTimeout, apiError{400, invalidRequest, "invalid_timeout", "x-request-timeout-seconds", "", 0}},
	{errMissingKey, apiError{401, invalidRequest, "invalid_api_key", "", "", 0}},
	{errWrongKey, apiError{401, invalidRequest, "invalid_api_key", "", "", 0}},
	{errAdminKey, apiError{401, invalidRequest, "invalid_api_key", "", "", 0}},
	{errCrossSite, apiError{403, invalidRequest, "cross_site_request", "", "", 0}},
	{errAdminHost, apiError{403, invalidRequest, "unknown_host", "", "", 0}},
	{errModelNotAllowed, apiError{403, invalidRequest, "model_not_allowed", "model", "", 0}},
	{errKeyLimit, apiError{429, rateLimit, "key_limit_reached", "", "", defaultRetryAfter}},
	{body.ErrAborted, apiError{400, invalidRequest, "incomplete_body", "", "", 0}},
	{errAdminOnly, apiError{403, invalidRequest, "admin_only", "", "", 0}},
	{errUnknownModel, apiError{404, invalidRequest, "model_not_found", "model", "", 0}},
	{errNoResponse, apiError{404, invalidRequest, "response_not_found", "response_id", "No replica holds a response with this ID; check the ID, or create the response again.", 0}},
	{errOwnerUnknown, apiError{503, serverError, "response_unreachable", "response_id", "", defaultRetryAfter}},
	{errUnknownPath, apiError{404, invalidRequest, "unknown_url", "", "", 0}},
	{errPathNotAllowed, apiError{404, invalidRequest, "unknown_url", "", "", 0}},
	{errWrongMethod, apiError{405, invalidRequest, "method_not_allowed", "", "", 0}},
	{body.ErrIdleTimeout, apiError{408, invalidRequest, "body_timeout", "", "", 0}},
	{body.ErrTooLarge, apiError{413, invalidRequest, "request_too_large", "", "", 0}},
	{errHeaderTooLarge, apiError{431, invalidRequest, "header_too_large", "", "", 0}},
	{openai.ErrContentType, apiError{415, invalidRequest, "unsupported_content_type", "", "", 0}},
	{openai.ErrContentEncoding, apiError{415, invalidRequest, "unsupported_content_encoding", "", "", 0}},
	{errTooManyConnections, apiError{503, serverError, "too_many_connections", "", "", defaultRetryAfter}},
	{body.ErrOverBudget, apiError{503, serverError, "request_memory_exhausted", "", "", defaultRetryAfter}},

	{routers.ErrQueueFull, apiError{429, rateLimit, "queue_full", "",
		"Every replica is busy and the queue is full; try again later.", defaultRetryAfter}},
	{routers.ErrOverloaded, apiError{429, rateLimit, "overloaded", "",
		"Every replica is busy and the wait would be too long; try again later.", defaultRetryAfter}},
	{routers.ErrQueueTimeout, apiError{503, serverError, "queue_timeout", "",
		"Every replica stayed busy until the queue timeout; try again later.", defaultRetryAfter}},
	{errQueueDeadline, apiError{503, serverError, "queue_timeout", "", errQueueDeadline.Error(), defaultRetryAfter}},
	{routers.ErrClosed, apiError{503, serverError, "model_removed", "model",
		"This server no longer serves the model; GET /v1/models lists those that it serves.", noRetry}},
	{llmserver.ErrSilent, apiError{504, serverError, "upstream_silent", "",
		"The replica stopped responding; try again.", 0}},
	{llmserver.ErrAborted, apiError{502, serverError, "upstream_broken", "",
		"The engine aborted the request; try again.", 0}},
	{streaming.ErrUpstreamBroken, apiError{502, serverError, "upstream_broken", "",
		"The replica broke off before the response began; try again.", 0}},
	{llmserver.ErrBroken, apiError{502, serverError, "upstream_broken", "",
		"The replica closed the connection before it responded; try again.", 0}},
	{llmserver.ErrSendTimeout, apiError{504, serverError, "upstream_send_timeout", "",
		"The replica stopped reading the request; try again.", 0}},
	{llmserver.ErrTimeout, apiError{504, serverError, "upstream_timeout", "",
		"The connection to the replica timed out; try again.", 0}},
	{llmserver.ErrNotHTTP, apiError{502, serverError, "upstream_invalid", "",
		"The replica sent a response that is not HTTP; report this to the operator.", 0}},
	{llmserver.ErrConnectTimeout, apiError{504, serverError, "upstream_connect_timeout", "",
		"No replica accepted a connection in time; try again later.", defaultRetryAfter}},
	{llmserver.ErrExhausted, apiError{503, serverError, "server_exhausted", "",
		"The server has run out of connections; try again later.", defaultRetryAfter}},
}

// toAPIError returns the API error for err. An error in no table is the server's own fault, and the
// text is not revealed.
func toAPIError(err error) apiError {
	if aborted, ok := errors.AsType[*streaming.AbortError](err); ok {
		return apiError{504, serverError, aborted.Code, "", aborted.Message, 0}
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
	if _, ok := errors.AsType[*openai.SyntaxError](err); ok {
		return apiError{400, invalidRequest, "invalid_json", "", err.Error(), 0}
	}
	if u, ok := errors.AsType[*routers.UnavailableError](err); ok {
		return apiError{503, serverError, "no_replica_available", "", unavailableMessage(u.Error()), defaultRetryAfter}
	}
	if llmserver.Refused(err) {
		return apiError{503, serverError, "no_replica_available", "", unavailableMessage(err.Error()), defaultRetryAfter}
	}
	return apiError{500, serverError, internalError, "", errInternal.Error(), 0}
}

// unavailableMessage returns a sentence for clients with the reasons for the lack of a replica.
func unavailableMessage(reasons string) string {
	return "The model is unavailable, try again later: " + reasons + "."
}

// clientGone reports whether err is a consequence of the client's disconnect. ctx is the request's.
func clientGone(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, streaming.ErrClientGone)
}

// unknownModel returns an errUnknownModel with the requested name, cut to a length fit for a
// message.
func unknownModel(name string) error {
	if len(name) > 200 {
		name = name[:200] + "…"
	}
	return &modelError{name}
}

type modelError struct{ name string }

func (e *modelError) Error() string {
	return "The model " + strconv.Quote(e.name) + " does not exist; GET /v1/models lists those that do."
}

func (e *modelError) Is(target error) bool { return target == errUnknownModel }
