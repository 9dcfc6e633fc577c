package llmserver

import "testing"

func TestEngineManagementCallTakesNoSlot(t *testing.T) {
	for _, path := range []string{
		"/sleep", "/wake_up", "/reset_prefix_cache", "/reset_mm_cache", "/flush_cache", "/start_profile", "/stop_profile",
		"/pause", "/resume", "/abort_request", "/update_weights", "/update_weights_from_disk", "/init_weights_update_group",
		"/load_lora_adapter", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/sleep", "/slots/0", "/api/pull",
	} {
		if !IsManagementPath(path) || TakesSlot("POST", path) {
			t.Errorf("POST %s takes a slot", path)
		}
	}
	for _, path := range []string{"/v1/responses/resp_1/cancel", "/responses/resp_1/cancel"} {
		if IsManagementPath(path) || TakesSlot("POST", path) {
			t.Errorf("POST %s takes a slot", path)
		}
	}
}

func TestEngineInferencePostTakesASlot(t *testing.T) {
	for _, path := range []string{
		"/v1/chat/completions", "/v1/responses", "/v1/responses/compact", "/v1/responses/a/b/cancel", "/v1/responses//cancel",
		"/v1/chat/cancel", "/tokenize", "/rerank", "/generate", "/v1/audio/speech", "/sleeping", "/v1/pauses", "/", "",
	} {
		if IsManagementPath(path) || !TakesSlot("POST", path) {
			t.Errorf("POST %s takes no slot", path)
		}
	}
	for _, method := range []string{"GET", "DELETE", "HEAD"} {
		if TakesSlot(method, "/v1/responses/resp_1") {
			t.Errorf("%s takes a slot", method)
		}
	}
}

func TestEngineBusyMatchesOnlyItsOwnRefusals(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		busy   bool
	}{
		{503, `{"object":"error","message":"The request queue is full.","type":"ServiceUnavailable","code":503}`, true},
		{503, `{"error":{"message":"...","type":"QueueOverflowError","param":null,"code":503}}`, true},
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
