package e2e

import (
	"fmt"
	"strings"
)

const chatPrefix = `{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"acme/demo",`

// chatResponse returns a chat completion with a message.
func chatResponse(message, finish string) bufferedResponse {
	return bufferedResponse{body: chatPrefix + `"choices":[{"index":0,"message":{"role":"assistant",` + message + `},"logprobs":null,"finish_reason":"` + finish +
		`"}],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}`}
}

const (
	toolCalls = `"tool_calls":[{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Zürich\"}"}},` +
		`{"id":"call_2","type":"function","function":{"name":"weather","arguments":"{\"city\": \"東京\"}"}}]`
	forecast = `{\"city\":\"Zürich\",\"degrees\":-3.5}`
)

// bufferedScripts returns scripts for the operations other than plain chat streams, with the
// responses of a correct engine.
func bufferedScripts() []script {
	toolStream := appendWrites(dataEvents(
		deltaChunk(`{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"weather","arguments":""}}]}`),
		deltaChunk(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"ci"}}]}`),
		deltaChunk(`{"tool_calls":[{"index":0,"function":{"arguments":"ty\":\"Zürich\"}"}}]}`),
		deltaChunk(`{"tool_calls":[{"index":1,"id":"call_2","type":"function","function":{"name":"weather","arguments":"{\"city\": "}}]}`),
		deltaChunk(`{"tool_calls":[{"index":1,"function":{"arguments":"\"東京\"}"}}]}`),
		strings.Replace(stopChunk, `"stop"`, `"tool_calls"`, 1)), doneEvent)
	return []script{
		{name: "models", operation: "models"},
		{name: "a model", operation: "model"},
		{name: "a buffered response", operation: "chat", response: chatResponse(`"content":"Hello, wörld 🌍!","refusal":null`, "stop")},
		{name: "a long response", operation: "chat", response: chatResponse(`"content":"`+longText(300_000)+`"`, "length")},
		{name: "a response with unusual JSON", operation: "chat", response: bufferedResponse{body: " \n" + strings.Replace(chatResponse(`"content":"1\u00e9\ud83c\udf0d"`, "stop").body, `"logprobs":null`, `"logprobs": null , "stop_reason" :null`, 1) + "\n\n"}},
		{name: "a response of another content type", operation: "chat", response: bufferedResponse{header: "Content-Type: text/plain; charset=utf-8", body: "Hello"}},
		{name: "a response that is not JSON", operation: "chat", response: bufferedResponse{body: "Hello"}},
		{name: "tools", operation: "tools", response: chatResponse(`"content":null,`+toolCalls, "tool_calls")},
		{name: "streamed tools", operation: "toolStream", writes: toolStream},
		{name: "streamed tools in pieces", operation: "toolStream", writes: splitWrites(7, toolStream...)},
		{name: "structured output", operation: "structured", response: chatResponse(`"content":"`+forecast+`","refusal":null`, "stop")},
		{name: "truncated structured output", operation: "structured", response: chatResponse(`"content":"{\"city\":","refusal":null`, "length")},
		{name: "streamed structured output", operation: "structuredStream", writes: appendWrites(dataEvents(roleChunk, textChunk(forecast[:9]), textChunk(forecast[9:]), stopChunk), doneEvent)},
		{name: "embeddings", operation: "embeddings", response: bufferedResponse{body: `{"object":"list","data":[{"object":"embedding","index":0,"embedding":"AAAAPwAAgL8="},{"object":"embedding","index":1,"embedding":"AACAPgAAAAA="}],"model":"acme/demo","usage":{"prompt_tokens":2,"total_tokens":2}}`}},
		{name: "embeddings as numbers", operation: "floats", response: bufferedResponse{body: `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5,-1.0]},{"object":"embedding","index":1,"embedding":[2.5e-1,0]}],"model":"acme/demo","usage":{"prompt_tokens":2,"total_tokens":2}}`}},
		{name: "a response object", operation: "response", response: bufferedResponse{body: apiResponse("completed", outputItem("completed", "Hello, wörld!"))}},
		{name: "a streamed response object", operation: "responseStream", writes: responseStream()},
		{name: "a streamed response object in pieces", operation: "responseStream", writes: splitWrites(11, responseStream()...)},
		{name: "a streamed response object that fails", operation: "responseStream", writes: appendWrites(responseStream()[:5],
			namedEvent("error", `"code":"server_error","message":"out of memory","param":null`, 5))},
		{name: "disconnecting from a stream", operation: "disconnect", writes: dataEvents(roleChunk, textChunk("Hello")), ending: endNever},
	}
}

// apiResponse returns an object of the Responses API.
func apiResponse(status, output string) string {
	return `{"id":"resp_1","object":"response","created_at":1700000000,"status":"` + status + `","error":null,"incomplete_details":null,"instructions":null,` +
		`"metadata":{},"model":"acme/demo","output":[` + output + `],"parallel_tool_calls":true,"temperature":1,"tool_choice":"auto","tools":[],"top_p":1,` +
		`"usage":{"input_tokens":3,"input_tokens_details":{"cached_tokens":0},"output_tokens":4,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":7}}`
}

func outputItem(status, text string) string {
	content := ""
	if text != "" {
		content = outputText(text)
	}
	return `{"id":"msg_1","type":"message","status":"` + status + `","role":"assistant","content":[` + content + `]}`
}

func outputText(text string) string {
	return `{"type":"output_text","text":"` + text + `","annotations":[],"logprobs":[]}`
}

func namedEvent(kind, members string, number int) string {
	return fmt.Sprintf("event: %s\ndata: {\"type\":\"%[1]s\",%s,\"sequence_number\":%d}\n\n", kind, members, number)
}

func responseStream() (events []string) {
	const place = `"item_id":"msg_1","output_index":0,"content_index":0`
	for i, e := range [][2]string{
		{"response.created", `"response":` + apiResponse("in_progress", "")},
		{"response.in_progress", `"response":` + apiResponse("in_progress", "")},
		{"response.output_item.added", `"output_index":0,"item":` + outputItem("in_progress", "")},
		{"response.content_part.added", place + `,"part":` + strings.Replace(outputText("-"), "-", "", 1)},
		{"response.output_text.delta", place + `,"delta":"Hello","logprobs":[]`},
		{"response.output_text.delta", place + `,"delta":", wörld!","logprobs":[]`},
		{"response.output_text.done", place + `,"text":"Hello, wörld!","logprobs":[]`},
		{"response.content_part.done", place + `,"part":` + outputText("Hello, wörld!")},
		{"response.output_item.done", `"output_index":0,"item":` + outputItem("completed", "Hello, wörld!")},
		{"response.completed", `"response":` + apiResponse("completed", outputItem("completed", "Hello, wörld!"))},
	} {
		events = append(events, namedEvent(e[0], e[1], i))
	}
	return events
}

// openAIError returns an error in OpenAI's format.
func openAIError(status int, header string) bufferedResponse {
	return bufferedResponse{status, header, fmt.Sprintf(`{"error":{"message":"This is why: %d.","type":"some_type","param":"some_param","code":"some_code"}}`, status)}
}

// errorScripts returns scripts with errors of every status and format, for a client without
// retries.
func errorScripts() (all []script) {
	for _, status := range []int{400, 401, 402, 403, 404, 405, 408, 409, 413, 415, 418, 422, 429, 500, 502, 503, 504, 529} {
		all = append(all, script{name: fmt.Sprint("error ", status), operation: "chat", options: `"retries":0`, response: openAIError(status, "")})
	}
	for _, form := range []struct {
		name   string
		answer bufferedResponse
	}{
		{"context length", bufferedResponse{400, "", `{"error":{"message":"This model's maximum context length is 8192 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`}},
		{"quota", bufferedResponse{429, "Retry-After: 20", `{"error":{"message":"You exceeded your current quota.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}`}},
		{"vLLM", bufferedResponse{400, "", `{"object":"error","message":"This is why.","type":"BadRequestError","param":null,"code":400}`}},
		{"numeric code", bufferedResponse{422, "", `{"error":{"message":"This is why.","type":"Unprocessable","param":null,"code":422}}`}},
		{"FastAPI", bufferedResponse{422, "", `{"detail":[{"loc":["body","messages"],"msg":"field required","type":"value_error.missing"}]}`}},
		{"HTML", bufferedResponse{502, "Content-Type: text/html", `<html><body>Bad Gateway</body></html>`}},
		{"text", bufferedResponse{500, "Content-Type: text/plain", `Internal Server Error`}},
		{"empty", bufferedResponse{500, "", ``}},
		{"string", bufferedResponse{400, "", `{"error":"This is why."}`}},
		{"headers", openAIError(429, "Retry-After: 7\nRetry-After-Ms: 7000\nX-Should-Retry: false\nX-RateLimit-Remaining-Requests: 0\nWWW-Authenticate: Bearer\nOpenAI-Processing-Ms: 5")},
	} {
		all = append(all, script{name: "error format: " + form.name, operation: "chat", options: `"retries":0`, response: form.answer})
	}
	for _, status := range []int{400, 429, 503} {
		all = append(all, script{name: fmt.Sprint("no stream but ", status), operation: "stream", options: `"retries":0`, response: openAIError(status, "")})
	}
	return append(all, script{name: "no response object but 429", operation: "responseStream", options: `"retries":0`, response: openAIError(429, "")})
}

// retryScripts returns scripts whose first responses are errors that the client retries
// immediately, as advised by their headers.
func retryScripts() (all []script) {
	const retryNow = "Retry-After-Ms: 1"
	success := chatResponse(`"content":"At last."`, "stop")
	for _, status := range []int{408, 409, 429, 500, 502, 503, 504} {
		all = append(all, script{name: fmt.Sprint("retry after ", status), operation: "chat", refusals: []bufferedResponse{openAIError(status, retryNow)}, response: success})
	}
	return append(all,
		script{name: "retry after a second", operation: "chat", refusals: []bufferedResponse{openAIError(429, "Retry-After: 1")}, response: success},
		script{name: "retry twice", operation: "chat", refusals: []bufferedResponse{openAIError(503, retryNow), openAIError(500, retryNow)}, response: success},
		script{name: "retry without success", operation: "chat", options: `"retries":1`, refusals: []bufferedResponse{openAIError(503, retryNow), openAIError(503, retryNow), openAIError(503, retryNow)}, response: success},
		script{name: "retry a stream", operation: "stream", refusals: []bufferedResponse{openAIError(429, retryNow)}, writes: appendWrites(dataEvents(helloChunks...), doneEvent)},
		script{name: "do not retry", operation: "chat", refusals: []bufferedResponse{openAIError(503, retryNow+"\nX-Should-Retry: false")}, response: success},
		script{name: "do retry", operation: "chat", refusals: []bufferedResponse{openAIError(400, retryNow+"\nX-Should-Retry: true")}, response: success},
	)
}
