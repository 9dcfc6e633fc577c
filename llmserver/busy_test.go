package llmserver

import (
	"errors"
	"strings"
	"testing"
)

func TestClassifyErrorResponses(t *testing.T) {
	for _, row := range []struct {
		status int
		body   string
		want   error
	}{
		{503, `{"object":"error","message":"The request queue is full.","code":503}`, ErrBusy},
		{503, `{"error":{"message":"Too many queued requests (--max-num-queued-reqs 4)","type":"QueueOverflowError"}}`, ErrBusy},
		{503, `{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.","type":"Service Unavailable","param":null,"code":503}}`, ErrBusy},
		{503, `{"error":"server busy, please try again.  maximum pending requests exceeded"}`, ErrBusy},
		{429, `{"error":"Model is overloaded","error_type":"overloaded"}`, ErrBusy},
		{503, `{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}`, ErrBusy},
		{500, `{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause."}}`, ErrEngineDead},
		{500, `{"error":{"message":"","type":"EngineDeadError"}}`, ErrEngineDead},
		{404, "{\"error\":{\"message\":\"The model `x` does not exist.\",\"type\":\"NotFoundError\",\"code\":404}}", ErrModelNotServed},
		{404, `{"error":"model 'x' not found"}`, ErrModelNotServed},
		{404, `{"error":{"code":"model_not_found"}}`, ErrModelNotServed},
		{500, `{"error":"prompt is too long"}`, ErrServerError},
		{502, "", ErrServerError},
		{503, "", ErrServerError},
		{504, "", ErrServerError},
		{404, `{"detail":"Not Found"}`, nil},
		{429, `{"error":{"code":"rate_limit_exceeded"}}`, nil},
		{400, "EngineDeadError", nil},
		{501, "", nil},
		{505, "", nil},
		{200, "The request queue is full.", nil},
	} {
		err := Classify(row.status, []byte(row.body))
		if row.want == nil && err != nil || !errors.Is(err, row.want) {
			t.Errorf("%d %s: got %v, want %v", row.status, row.body, err, row.want)
		}
		if err != nil && row.body != "" && strings.Contains(err.Error(), row.body) {
			t.Errorf("the error has text of the engine: %v", err)
		}
	}
}
