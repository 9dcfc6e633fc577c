package ingress

import "strings"

// errorBody is OpenAI's error object: all four keys, error first.
type errorBody struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	} `json:"error"`
}

// openAI is the answer in OpenAI's form.
func (a apiError) openAI() any {
	var body errorBody
	body.Error.Message, body.Error.Type, body.Error.Code = a.message, a.kind, &a.code
	if a.param != "" {
		body.Error.Param = &a.param
	}
	return body
}

// anthropicError is the error object of Anthropic's API.
type anthropicError struct {
	Type  string `json:"type"` // "error"
	Error struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	} `json:"error"`
	RequestID string `json:"request_id"`
}

// anthropic is the answer in Anthropic's form.
func (a apiError) anthropic(requestID string) any {
	body := anthropicError{Type: "error", RequestID: requestID}
	body.Error.Type, body.Error.Message = anthropicKind(a.status), a.message
	return body
}

// anthropicKind is what Anthropic's API calls an error of that status.
func anthropicKind(status int) string {
	switch status {
	case 401:
		return "authentication_error"
	case 403:
		return "permission_error"
	case 404:
		return "not_found_error"
	case 413:
		return "request_too_large"
	case 429:
		return "rate_limit_error"
	case 503:
		return "overloaded_error"
	case 504:
		return "timeout_error"
	}
	if status >= 500 {
		return "api_error"
	}
	return "invalid_request_error"
}

// anthropic tells the paths of Anthropic's API.
func anthropic(path string) bool {
	path = strings.TrimPrefix(path, "/v1")
	return path == "/messages" || strings.HasPrefix(path, "/messages/")
}
