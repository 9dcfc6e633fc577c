package llmserver

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
)

// This file holds what differs between engines: the paths of their management calls, and the
// responses by which they refuse a request because they are busy.

// TakesSlot reports whether a request takes one of the replica's slots. Every POST does, except
// management calls and the cancel of a stored response.
func TakesSlot(method, path string) bool {
	return method == http.MethodPost && !IsManagementPath(path) && !isCancelPath(path)
}

// isCancelPath reports whether path is /v1/responses/{id}/cancel, with or without /v1.
func isCancelPath(path string) bool {
	id, cancel := strings.CutSuffix(path, "/cancel")
	id, response := strings.CutPrefix(strings.TrimPrefix(id, "/v1"), "/responses/")
	return cancel && response && id != "" && !strings.Contains(id, "/")
}

// IsManagementPath reports whether a decoded path, with or without /v1, manages an engine and asks
// for no inference. It knows the paths of vLLM, SGLang, llama.cpp and Ollama.
func IsManagementPath(path string) bool {
	path = strings.TrimPrefix(path, "/v1")
	return managementPaths[path] ||
		slices.ContainsFunc(managementPrefixes, func(prefix string) bool { return strings.HasPrefix(path, prefix) })
}

var managementPaths = map[string]bool{
	// caches
	"/flush_cache": true, "/clear_hicache_storage_backend": true, "/hicache/storage-backend": true,
	// sleep and memory
	"/sleep": true, "/wake_up": true, "/is_sleeping": true,
	"/release_memory_occupation": true, "/resume_memory_occupation": true,
	// ongoing requests
	"/pause": true, "/resume": true, "/is_paused": true, "/pause_generation": true, "/continue_generation": true,
	"/abort_request": true, "/abort_requests": true, "/open_session": true, "/close_session": true,
	// adapters and models
	"/load_lora_adapter": true, "/load_lora_adapter_from_tensors": true, "/unload_lora_adapter": true, "/lora-adapters": true,
	"/models/load": true, "/models/unload": true,
	"/api/pull": true, "/api/push": true, "/api/create": true, "/api/copy": true, "/api/delete": true,
	// weights
	"/get_weights_by_name": true, "/finish_weight_update": true, "/send_weights_to_remote_instance": true,
	// engine information and settings
	"/server_info": true, "/get_server_info": true, "/set_internal_state": true, "/configure_logging": true,
	"/freeze_gc": true, "/slow_down": true, "/collective_rpc": true, "/props": true,
	"/scale_elastic_ep": true, "/is_scaling_elastic_ep": true,
}

var managementPrefixes = []string{
	"/reset_",                            // caches
	"/start_", "/stop_", "/dump_expert_", // profiles and records
	"/update_weight", "/init_weight", "/destroy_weight",
	"/slots", "/api/blobs/",
}

// Busy reports whether a response is an engine's own refusal of a request because its queue is full
// or it is not ready. The engine has done no work, so another replica may be tried.
func Busy(status int, body []byte) bool {
	if status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests {
		return false
	}
	lower := bytes.ToLower(body)
	return slices.ContainsFunc(busyResponses, func(r busyResponse) bool {
		return r.status == status && bytes.Contains(lower, []byte(r.text))
	})
}

// A busyResponse matches a response by its status and by a text in its body, in any case.
type busyResponse struct {
	status int
	text   string
}

var busyResponses = []busyResponse{
	{http.StatusServiceUnavailable, "the request queue is full"},         // SGLang, --max-queued-requests
	{http.StatusServiceUnavailable, "queueoverflow"},                     // vLLM from 0.29, --max-num-queued-reqs and -tokens: the error's type
	{http.StatusServiceUnavailable, "max_num_queued"},                    // the same, by the option in the error's message
	{http.StatusServiceUnavailable, "max-num-queued"},                    //
	{http.StatusTooManyRequests, "waiting queue"},                        // vLLM builds with --max-waiting-queue-length
	{http.StatusTooManyRequests, "model is overloaded"},                  // TGI, --max-concurrent-requests
	{http.StatusServiceUnavailable, "maximum pending requests exceeded"}, // Ollama, OLLAMA_MAX_QUEUE
	{http.StatusServiceUnavailable, "loading model"},                     // llama.cpp before it is ready
	{http.StatusServiceUnavailable, "no slot available"},                 // llama.cpp with fail_on_no_slot
}
