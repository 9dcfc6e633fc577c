package openai

import (
	"iter"
	"net/http"
	"path"
	"strings"
)

// traits are the properties of a path. A path is either an inference or a management path.
type traits uint8

const (
	inference  traits = 1 << iota // a POST asks the engine for work and takes a slot
	management                    // manages the engine, asks for no work and takes no slot
	versioned                     // engines serve the path below /v1 only
	storing                       // a POST creates a resource outliving the request
	events                        // the response to a POST with "stream": true is an event stream
)

const (
	openAIPath    = inference | versioned
	anthropicPath = inference | versioned
	nativePath    = inference // an engine's own, served at exactly this path
)

// endpoints is the one table of paths, without /v1. Engines also serve model management paths that
// no list can cover, so an unlisted path is neither an inference path nor known to be a management
// path.
var endpoints = map[string]traits{
	"/chat/completions": openAIPath | events, "/completions": openAIPath | events, "/embeddings": openAIPath, "/moderations": openAIPath,
	"/responses": openAIPath | storing | events, "/responses/compact": openAIPath, "/responses/input_tokens": openAIPath,
	"/audio/transcriptions": openAIPath, "/audio/translations": openAIPath, "/audio/speech": openAIPath,
	"/images/generations": openAIPath, "/images/edits": openAIPath, "/images/variations": openAIPath,
	"/chat/completions/render": openAIPath, "/completions/render": openAIPath, // vLLM

	"/messages": anthropicPath | events, "/messages/count_tokens": anthropicPath,

	// Several engines
	"/rerank": nativePath, "/v2/rerank": nativePath, "/v2/embed": nativePath, "/score": nativePath, "/classify": nativePath,
	"/pooling": nativePath, "/tokenize": nativePath, "/detokenize": nativePath,
	// vLLM and SGLang
	"/generate": nativePath, "/inference/v1/generate": nativePath, "/invocations": nativePath, "/encode": nativePath,
	// llama.cpp
	"/embedding": nativePath, "/completion": nativePath, "/infill": nativePath, "/apply-template": nativePath, "/reranking": nativePath,
	// TGI
	"/generate_stream": nativePath, "/chat_tokenize": nativePath,
	// TEI
	"/embed": nativePath, "/embed_all": nativePath, "/embed_sparse": nativePath, "/similarity": nativePath, "/predict": nativePath,
	// Ollama
	"/api/generate": nativePath, "/api/chat": nativePath, "/api/embed": nativePath, "/api/embeddings": nativePath,

	// Caches
	"/flush_cache": management, "/clear_hicache_storage_backend": management, "/hicache/storage-backend": management,
	// Sleep and memory
	"/sleep": management, "/wake_up": management, "/is_sleeping": management,
	"/release_memory_occupation": management, "/resume_memory_occupation": management,
	// Requests in flight
	"/pause": management, "/resume": management, "/is_paused": management, "/pause_generation": management,
	"/continue_generation": management, "/abort_request": management, "/abort_requests": management,
	"/open_session": management, "/close_session": management,
	// Adapters and models
	"/load_lora_adapter": management, "/load_lora_adapter_from_tensors": management, "/unload_lora_adapter": management,
	"/lora-adapters": management, "/models/load": management, "/models/unload": management,
	"/api/pull": management, "/api/push": management, "/api/create": management, "/api/copy": management, "/api/delete": management,
	// Weights
	"/get_weights_by_name": management, "/finish_weight_update": management, "/send_weights_to_remote_instance": management,
	// Engine information and settings
	"/server_info": management, "/get_server_info": management, "/set_internal_state": management, "/configure_logging": management,
	"/freeze_gc": management, "/slow_down": management, "/collective_rpc": management, "/props": management,
	"/scale_elastic_ep": management, "/is_scaling_elastic_ep": management,
}

// managementPrefixes begin further management paths, without /v1.
var managementPrefixes = []string{
	"/reset_",                            // caches
	"/start_", "/stop_", "/dump_expert_", // profiles and recordings
	"/update_weight", "/init_weight", "/destroy_weight",
	"/slots", "/api/blobs/",
}

// IsInferencePath reports whether path, with or without /v1, is a known path of requests for an
// engine's work. All functions of this file expect decoded paths.
func IsInferencePath(path string) bool {
	return endpoints[strings.TrimPrefix(path, "/v1")]&inference != 0
}

// InferencePaths returns the inference paths without /v1, in no particular order.
func InferencePaths() iter.Seq[string] {
	return func(yield func(string) bool) {
		for path, t := range endpoints {
			if t&inference != 0 && !yield(path) {
				return
			}
		}
	}
}

// IsManagementPath reports whether path, with or without /v1, is an engine's management call:
// vLLM's, SGLang's, llama.cpp's or Ollama's.
func IsManagementPath(path string) bool {
	path = strings.TrimPrefix(path, "/v1")
	if endpoints[path]&management != 0 {
		return true
	}
	for _, prefix := range managementPrefixes {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}

// TakesSlot reports whether a request takes one of the replica's slots: every POST does, known path
// or not, except management calls and cancellations of stored responses.
func TakesSlot(method, path string) bool {
	return method == http.MethodPost && !IsManagementPath(path) && !cancelsResponse(path)
}

// cancelsResponse reports whether path is /responses/{id}/cancel, with or without /v1.
func cancelsResponse(path string) bool {
	id, cancel := strings.CutSuffix(path, "/cancel")
	id, response := strings.CutPrefix(strings.TrimPrefix(id, "/v1"), "/responses/")
	return cancel && response && id != "" && !strings.Contains(id, "/")
}

// CreatesStored reports whether a POST to path creates a resource that outlives the request. The
// last element of the path decides, so a known path below an unknown prefix also counts.
func CreatesStored(path string) bool {
	i := strings.LastIndexByte(path, '/')
	return i >= 0 && endpoints[path[i:]]&storing != 0
}

// VersionPrefix returns the prefix missing in front of path: "/v1" if engines serve the path below
// /v1 only, else "".
func VersionPrefix(path string) string {
	if endpoints[path]&versioned != 0 || strings.HasPrefix(path, "/responses/") {
		return "/v1"
	}
	return ""
}

// IsAnthropicPath reports whether path, with or without /v1, belongs to Anthropic's API, which has
// error objects of its own.
func IsAnthropicPath(path string) bool {
	path = strings.TrimPrefix(path, "/v1")
	return path == "/messages" || strings.HasPrefix(path, "/messages/")
}

// IsCleanPath reports whether p is absolute and has no empty, "." or ".." elements. Any other path
// may mean a different one to the engine than to the table.
func IsCleanPath(p string) bool { return strings.HasPrefix(p, "/") && path.Clean(p) == p }

// StreamsEvents reports whether the response to a POST with "stream": true to path, with or without
// /v1, is an event stream.
func StreamsEvents(path string) bool { return endpoints[strings.TrimPrefix(path, "/v1")]&events != 0 }
