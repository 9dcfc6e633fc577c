package openai

import "testing"

func TestManagementPathTakesNoSlot(t *testing.T) {
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

func TestInferencePathTakesASlot(t *testing.T) {
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

func TestInferencePathIsNoManagementPath(t *testing.T) {
	n := 0
	for path := range InferencePaths() {
		n++
		for _, p := range []string{path, "/v1" + path} {
			if !IsInferencePath(p) || IsManagementPath(p) || !TakesSlot("POST", p) || !IsCleanPath(p) {
				t.Errorf("%s: inference %t, management %t, takes a slot %t, clean %t", p,
					IsInferencePath(p), IsManagementPath(p), TakesSlot("POST", p), IsCleanPath(p))
			}
		}
	}
	if n < 40 {
		t.Errorf("the table has %d inference paths", n)
	}
	for _, path := range []string{"", "/", "/v1", "/v1/v1/completions", "completions", "/v1/chat", "/sleep", "/slots", "/models"} {
		if IsInferencePath(path) {
			t.Errorf("%q is an inference path", path)
		}
	}
}

func TestVersionPrefixIsWhatEnginesServeBelowV1Only(t *testing.T) {
	for path, want := range map[string]string{
		"/chat/completions": "/v1", "/responses": "/v1", "/responses/resp_1": "/v1", "/responses/resp_1/cancel": "/v1", "/messages": "/v1",
		"/v1/chat/completions": "", "/v1/responses/resp_1": "", "/rerank": "", "/generate": "", "/sleep": "", "/x": "", "": "",
	} {
		if got := VersionPrefix(path); got != want {
			t.Errorf("%s has the prefix %q, want %q", path, got, want)
		}
	}
}

func TestCreatesStoredGoesByTheLastElement(t *testing.T) {
	for path, want := range map[string]bool{
		"/v1/responses": true, "/responses": true, "/openai/v1/responses": true,
		"/v1/responses/": false, "/v1/responses/resp_1": false, "/v1/responses/compact": false, "/v1/chat/completions": false,
		"/myresponses": false, "responses": false, "": false,
	} {
		if got := CreatesStored(path); got != want {
			t.Errorf("%q: %t", path, got)
		}
	}
}

func TestIsCleanPathRejectsOtherSpellings(t *testing.T) {
	for path, want := range map[string]bool{
		"/": true, "/v1/completions": true, "/a..b": true,
		"": false, "v1": false, "//v1": false, "/v1/": false, "/v1/../sleep": false, "/v1/./x": false, "/..": false,
	} {
		if got := IsCleanPath(path); got != want {
			t.Errorf("%q: %t", path, got)
		}
	}
}

func TestIsAnthropicPathCoversTheMessagesAPI(t *testing.T) {
	for path, want := range map[string]bool{
		"/messages": true, "/v1/messages": true, "/v1/messages/count_tokens": true, "/v1/messages/batches": true,
		"/v1/messagesx": false, "/v1/chat/messages": false, "/": false,
	} {
		if got := IsAnthropicPath(path); got != want {
			t.Errorf("%q: %t", path, got)
		}
	}
}
