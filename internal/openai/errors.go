package openai

import (
	"encoding/json"
	"net/http"
)

// The error types distinguished by OpenAI's clients.
const (
	TypeInvalidRequest = "invalid_request_error"
	TypeRateLimit      = "rate_limit_error"
	TypeServer         = "server_error"
)

// An Error is an API error to be sent to a client, as the body of a response or as the last event
// of an event stream, in OpenAI's form or in Anthropic's.
type Error struct {
	Status  int    // HTTP status code; not part of OpenAI's form
	Type    string // one of the Type constants
	Code    string
	Param   string // the offending parameter; null on the wire if empty
	Message string // one or more sentences for people
}

// JSON returns e as the body of a response: OpenAI's error object with all four keys, error first.
func (e Error) JSON() []byte {
	type object struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	}
	var body struct {
		Error object `json:"error"`
	}
	body.Error = object{Message: e.Message, Type: e.Type, Code: e.Code}
	if e.Param != "" {
		body.Error.Param = &e.Param
	}
	return mustMarshal(body)
}

// Event returns e as an event of an OpenAI event stream. Some clients detect errors by the text
// {"error": so this key comes first, without a space before or after the colon.
func (e Error) Event() []byte {
	return append(append([]byte("data: "), e.JSON()...), "\n\n"...)
}

// anthropicBody is the error object of Anthropic's API.
type anthropicBody struct {
	Type  string `json:"type"` // "error"
	Error struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	} `json:"error"`
	RequestID *string `json:"request_id,omitempty"`
}

// AnthropicJSON returns e as the body of a response of Anthropic's API. Type, Code and Param have
// no place there; the type follows from the status.
func (e Error) AnthropicJSON(requestID string) []byte {
	body := anthropicBody{Type: "error", RequestID: &requestID}
	body.Error.Type, body.Error.Message = anthropicType(e.Status), e.Message
	return mustMarshal(body)
}

// AnthropicEvent returns e as an event of an Anthropic event stream. The type is always api_error,
// because the status of the response has been sent already.
func (e Error) AnthropicEvent() []byte {
	body := anthropicBody{Type: "error"}
	body.Error.Type, body.Error.Message = "api_error", e.Message
	return append(append([]byte("event: error\ndata: "), mustMarshal(body)...), "\n\n"...)
}

// anthropicType returns the error type of Anthropic's API for an HTTP status.
func anthropicType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable:
		return "overloaded_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	}
	if status >= http.StatusInternalServerError {
		return "api_error"
	}
	return "invalid_request_error"
}

func mustMarshal(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic("BUG: an error object does not encode: " + err.Error())
	}
	return text
}
