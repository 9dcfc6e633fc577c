package llmserver

import (
	"bytes"
	"net/http"
)

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
