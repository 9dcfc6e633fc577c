package llmserver

import "testing"

func TestEngineBusyMatchesOnlyItsOwnRefusals(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		busy   bool
	}{
		{503, `{"object":"error","message":"The request queue is full.","type":"ServiceUnavailable","code":503}`, true},
		{503, `{"error":{"message":"...","type":"QueueOverflowError","param":null,"code":503}}`, true},
		{503, `{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.","type":"Service Unavailable","param":null,"code":503}}`, true},
		{429, `{"error":"Model is overloaded","error_type":"overloaded"}`, true},
		{503, `{"error":"server busy, please try again.  maximum pending requests exceeded"}`, true},
		{503, `{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}`, true},
		{429, `{"error":{"message":"The request queue is full."}}`, false}, // not the status that this engine uses
		{503, `{"error":{"message":"EngineCore encountered an issue."}}`, false},
		{429, `{"error":{"message":"Rate limit reached"}}`, false},
		{500, `The request queue is full.`, false},
		{200, `Model is overloaded`, false},
		{503, ``, false},
	} {
		if got := Busy(c.status, []byte(c.body)); got != c.busy {
			t.Errorf("Busy(%d, %s) = %t", c.status, c.body, got)
		}
	}
}
