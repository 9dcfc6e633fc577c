package llmserver

import (
	"bytes"
	"net/http"
	"strings"
)

// IsManagementPath tells whether a path is that of a call that manages an engine and asks it for no work. These are the calls of
// vLLM, SGLang, llama.cpp and Ollama, with and without /v1. The path is a decoded one.
func IsManagementPath(path string) bool {
	path = strings.TrimPrefix(path, "/v1")
	if managing[path] {
		return true
	}
	for _, prefix := range managingPrefixes {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}

var managing = map[string]bool{
	// caches
	"/flush_cache": true, "/clear_hicache_storage_backend": true, "/hicache/storage-backend": true,
	// sleep, and memory
	"/sleep": true, "/wake_up": true, "/is_sleeping": true,
	"/release_memory_occupation": true, "/resume_memory_occupation": true,
	// requests under way
	"/pause": true, "/resume": true, "/is_paused": true, "/pause_generation": true, "/continue_generation": true,
	"/abort_request": true, "/abort_requests": true, "/open_session": true, "/close_session": true,
	// adapters and models
	"/load_lora_adapter": true, "/load_lora_adapter_from_tensors": true, "/unload_lora_adapter": true, "/lora-adapters": true,
	"/models/load": true, "/models/unload": true,
	"/api/pull": true, "/api/push": true, "/api/create": true, "/api/copy": true, "/api/delete": true,
	// weights
	"/get_weights_by_name": true, "/finish_weight_update": true, "/send_weights_to_remote_instance": true,
	// what an engine is, and how it is set
	"/server_info": true, "/get_server_info": true, "/set_internal_state": true, "/configure_logging": true,
	"/freeze_gc": true, "/slow_down": true, "/collective_rpc": true, "/props": true,
	"/scale_elastic_ep": true, "/is_scaling_elastic_ep": true,
}

var managingPrefixes = []string{
	"/reset_",                            // of caches
	"/start_", "/stop_", "/dump_expert_", // of profiles and records
	"/update_weight", "/init_weight", "/destroy_weight",
	"/slots", "/api/blobs/",
}

// TakesSlot tells whether a request takes one of the replica's slots: a POST, unless it manages the engine or ends a
// response that is under way.
func TakesSlot(method, path string) bool {
	return method == http.MethodPost && !IsManagementPath(path) && !cancels(path)
}

// cancels tells POST /v1/responses/{id}/cancel.
func cancels(path string) bool {
	id, cancel := strings.CutSuffix(path, "/cancel")
	id, response := strings.CutPrefix(strings.TrimPrefix(id, "/v1"), "/responses/")
	return cancel && response && id != "" && !strings.Contains(id, "/")
}

// busyAnswers are the ways in which engines say that they did not take a request because their own
// queue is full, or because they are not ready. None of them has done any work for it, so another
// replica may be tried. An answer counts if its body holds the text, in any case.
var busyAnswers = []struct {
	status int
	text   string
}{
	{http.StatusServiceUnavailable, "the request queue is full"},         // SGLang, --max-queued-requests
	{http.StatusServiceUnavailable, "queueoverflow"},                     // vLLM from 0.29, --max-num-queued-reqs and -tokens: the error's type
	{http.StatusServiceUnavailable, "max_num_queued"},                    // the same, by the option that its message names
	{http.StatusServiceUnavailable, "max-num-queued"},                    //
	{http.StatusTooManyRequests, "waiting queue"},                        // vLLM builds with --max-waiting-queue-length
	{http.StatusTooManyRequests, "model is overloaded"},                  // TGI, --max-concurrent-requests
	{http.StatusServiceUnavailable, "maximum pending requests exceeded"}, // Ollama, OLLAMA_MAX_QUEUE
	{http.StatusServiceUnavailable, "loading model"},                     // llama.cpp before it is ready
	{http.StatusServiceUnavailable, "no slot available"},                 // llama.cpp with fail_on_no_slot
}

// Busy tells whether an engine's answer is its own way of saying that it is too
// busy and has done nothing for the request.
func Busy(status int, body []byte) bool {
	if status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests {
		return false
	}
	lower := bytes.ToLower(body)
	for _, a := range busyAnswers {
		if a.status == status && bytes.Contains(lower, []byte(a.text)) {
			return true
		}
	}
	return false
}
