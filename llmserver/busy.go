package llmserver

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
)

// Classify returns why an error response of an engine is a failure of the replica rather than of
// the request, nil if it is not: ErrBusy for an engine's own refusal of a request, because of a
// full queue or during startup, ErrEngineDead, ErrModelNotServed, or ErrServerError for any other
// 5xx. The error has the status and no text of the engine. body is the response body, or its
// beginning.
func Classify(status int, body []byte) error {
	if status < http.StatusInternalServerError && status != http.StatusTooManyRequests && status != http.StatusNotFound {
		return nil
	}
	lower := bytes.ToLower(body)
	has := func(text string) bool { return bytes.Contains(lower, []byte(text)) }
	err := ErrServerError
	switch {
	case slices.ContainsFunc(busyResponses, func(r busyResponse) bool { return r.status == status && has(r.text) }):
		err = ErrBusy
	case status == http.StatusNotFound && slices.ContainsFunc(unknownModelTexts, has):
		err = ErrModelNotServed
	case status < http.StatusInternalServerError, status == http.StatusNotImplemented, status == http.StatusHTTPVersionNotSupported:
		return nil
	case slices.ContainsFunc(deadEngineTexts, has):
		err = ErrEngineDead
	}
	return fmt.Errorf("%w (%d %s)", err, status, http.StatusText(status))
}

// deadEngineTexts are the marks of a 5xx from a server whose engine process has died.
var deadEngineTexts = []string{
	"enginecore encountered an issue", // vLLM V1, the message of EngineDeadError
	"enginedeaderror",
}

// unknownModelTexts are the marks of a 404 for a model rather than for a path.
var unknownModelTexts = []string{
	"the model `", // vLLM: The model `NAME` does not exist.
	"model '",     // Ollama: model 'NAME' not found
	"model \\\"",  // the same in earlier versions, quoted within JSON
	"model_not_found",
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
