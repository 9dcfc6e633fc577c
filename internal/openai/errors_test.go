package openai

import "testing"

// The bytes that clients parse. The order of the keys and the lack of white space matter to some.
func TestErrorHasTheBytesOfEachAPI(t *testing.T) {
	e := Error{Status: 504, Type: TypeServer, Code: "upstream_timeout", Message: `It "took" too long.`}
	withParam := Error{Status: 404, Type: TypeInvalidRequest, Code: "model_not_found", Param: "model", Message: "No."}
	for name, c := range map[string]struct{ got, want string }{
		"JSON":            {string(e.JSON()), `{"error":{"message":"It \"took\" too long.","type":"server_error","param":null,"code":"upstream_timeout"}}`},
		"a parameter":     {string(withParam.JSON()), `{"error":{"message":"No.","type":"invalid_request_error","param":"model","code":"model_not_found"}}`},
		"nothing":         {string(Error{}.JSON()), `{"error":{"message":"","type":"","param":null,"code":""}}`},
		"event":           {string(e.Event()), "data: " + string(e.JSON()) + "\n\n"},
		"Anthropic":       {string(withParam.AnthropicJSON("id")), `{"type":"error","error":{"type":"not_found_error","message":"No."},"request_id":"id"}`},
		"no request ID":   {string(withParam.AnthropicJSON("")), `{"type":"error","error":{"type":"not_found_error","message":"No."},"request_id":""}`},
		"Anthropic event": {string(e.AnthropicEvent()), "event: error\ndata: " + `{"type":"error","error":{"type":"api_error","message":"It \"took\" too long."}}` + "\n\n"},
	} {
		if c.got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, c.got, c.want)
		}
	}
}

func TestErrorTypeOfAnthropicFollowsFromTheStatus(t *testing.T) {
	for status, want := range map[int]string{
		400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error", 408: "invalid_request_error",
		413: "request_too_large", 415: "invalid_request_error", 429: "rate_limit_error",
		500: "api_error", 502: "api_error", 503: "overloaded_error", 504: "timeout_error",
	} {
		if got := anthropicType(status); got != want {
			t.Errorf("%d is %s, want %s", status, got, want)
		}
	}
}
