package llmserver

import (
	"bytes"
	"net/http"
	"slices"
)

// Busy reports whether a response is an engine's own refusal of a request, because of a full queue
// or during startup. The engine has done no work, so another replica may be tried.
func Busy(status int, body []byte) bool {
	if status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests {
		return false
	}
	lower := bytes.ToLower(body)
	return slices.ContainsFunc(busyResponses, func(r busyResponse) bool {
		return r.status == status && bytes.Contains(lower, []byte(r.text))
	})
}

// A busyResponse matches a response by status and by a text in the body, in upper or lower case.
type busyResponse struct {
	status int
	text   string
}

var busyResponses = []busyResponse{
	{http.StatusServiceUnavailable, "the request queue is full"},         // SGLang, --max-queued-requests
	{http.StatusServiceUnavailable, "currently busy and cannot accept"},  // vLLM 0.32, --max-num-queued-reqs
	{http.StatusServiceUnavailable, "queueoverflow"},                     // vLLM from 0.29, --max-num-queued-reqs and -tokens: the error's type
	{http.StatusServiceUnavailable, "max_num_queued"},                    // the same, by the option in the error's message
	{http.StatusServiceUnavailable, "max-num-queued"},                    //
	{http.StatusTooManyRequests, "waiting queue"},                        // vLLM builds with --max-waiting-queue-length
	{http.StatusTooManyRequests, "model is overloaded"},                  // TGI, --max-concurrent-requests
	{http.StatusServiceUnavailable, "maximum pending requests exceeded"}, // Ollama, OLLAMA_MAX_QUEUE
	{http.StatusServiceUnavailable, "loading model"},                     // llama.cpp during startup
	{http.StatusServiceUnavailable, "no slot available"},                 // llama.cpp with fail_on_no_slot
}
