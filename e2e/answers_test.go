package e2e

import (
	"fmt"
	"strings"
)

const chatHead = `{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"acme/demo",`

// chatAnswer is a whole answer with a message.
func chatAnswer(message, finish string) whole {
	return whole{body: chatHead + `"choices":[{"index":0,"message":{"role":"assistant",` + message + `},"logprobs":null,"finish_reason":"` + finish +
		`"}],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}`}
}

const (
	calls = `"tool_calls":[{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Zürich\"}"}},` +
		`{"id":"call_2","type":"function","function":{"name":"weather","arguments":"{\"city\": \"東京\"}"}}]`
	forecast = `{\"city\":\"Zürich\",\"degrees\":-3.5}`
)

// answers are what clients do beside streaming, each with an answer as good engines give it.
func answers() []act {
	toolStream := then(plain(
		delta(`{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"weather","arguments":""}}]}`),
		delta(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"ci"}}]}`),
		delta(`{"tool_calls":[{"index":0,"function":{"arguments":"ty\":\"Zürich\"}"}}]}`),
		delta(`{"tool_calls":[{"index":1,"id":"call_2","type":"function","function":{"name":"weather","arguments":"{\"city\": "}}]}`),
		delta(`{"tool_calls":[{"index":1,"function":{"arguments":"\"東京\"}"}}]}`),
		strings.Replace(stops, `"stop"`, `"tool_calls"`, 1)), done)
	return []act{
		{name: "models", do: "models"},
		{name: "a model", do: "model"},
		{name: "a whole answer", do: "chat", answer: chatAnswer(`"content":"Hello, wörld 🌍!","refusal":null`, "stop")},
		{name: "a long answer", do: "chat", answer: chatAnswer(`"content":"`+aStory(300_000)+`"`, "length")},
		{name: "an answer with oddities", do: "chat", answer: whole{body: " \n" + strings.Replace(chatAnswer(`"content":"1\u00e9\ud83c\udf0d"`, "stop").body, `"logprobs":null`, `"logprobs": null , "stop_reason" :null`, 1) + "\n\n"}},
		{name: "an answer of another type", do: "chat", answer: whole{header: "Content-Type: text/plain; charset=utf-8", body: "Hello"}},
		{name: "an answer that is not JSON", do: "chat", answer: whole{body: "Hello"}},
		{name: "tools", do: "tools", answer: chatAnswer(`"content":null,`+calls, "tool_calls")},
		{name: "streamed tools", do: "toolStream", writes: toolStream},
		{name: "streamed tools in pieces", do: "toolStream", writes: inPieces(7, toolStream...)},
		{name: "structured output", do: "structured", answer: chatAnswer(`"content":"`+forecast+`","refusal":null`, "stop")},
		{name: "structured output that was cut off", do: "structured", answer: chatAnswer(`"content":"{\"city\":","refusal":null`, "length")},
		{name: "streamed structured output", do: "structuredStream", writes: then(plain(begins, says(forecast[:9]), says(forecast[9:]), stops), done)},
		{name: "embeddings", do: "embeddings", answer: whole{body: `{"object":"list","data":[{"object":"embedding","index":0,"embedding":"AAAAPwAAgL8="},{"object":"embedding","index":1,"embedding":"AACAPgAAAAA="}],"model":"acme/demo","usage":{"prompt_tokens":2,"total_tokens":2}}`}},
		{name: "embeddings as numbers", do: "floats", answer: whole{body: `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5,-1.0]},{"object":"embedding","index":1,"embedding":[2.5e-1,0]}],"model":"acme/demo","usage":{"prompt_tokens":2,"total_tokens":2}}`}},
		{name: "a response", do: "response", answer: whole{body: aResponse("completed", outputItem("completed", "Hello, wörld!"))}},
		{name: "a streamed response", do: "responseStream", writes: responseStream()},
		{name: "a streamed response in pieces", do: "responseStream", writes: inPieces(11, responseStream()...)},
		{name: "a streamed response that fails", do: "responseStream", writes: then(responseStream()[:5],
			namedEvent("error", `"code":"server_error","message":"out of memory","param":null`, 5))},
		{name: "leaving a stream", do: "leave", writes: plain(begins, says("Hello")), ends: never},
	}
}

// aResponse is an object of the Responses API.
func aResponse(status, output string) string {
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
		{"response.created", `"response":` + aResponse("in_progress", "")},
		{"response.in_progress", `"response":` + aResponse("in_progress", "")},
		{"response.output_item.added", `"output_index":0,"item":` + outputItem("in_progress", "")},
		{"response.content_part.added", place + `,"part":` + strings.Replace(outputText("-"), "-", "", 1)},
		{"response.output_text.delta", place + `,"delta":"Hello","logprobs":[]`},
		{"response.output_text.delta", place + `,"delta":", wörld!","logprobs":[]`},
		{"response.output_text.done", place + `,"text":"Hello, wörld!","logprobs":[]`},
		{"response.content_part.done", place + `,"part":` + outputText("Hello, wörld!")},
		{"response.output_item.done", `"output_index":0,"item":` + outputItem("completed", "Hello, wörld!")},
		{"response.completed", `"response":` + aResponse("completed", outputItem("completed", "Hello, wörld!"))},
	} {
		events = append(events, namedEvent(e[0], e[1], i))
	}
	return events
}

// openAIError is an error in OpenAI's form.
func openAIError(status int, header string) whole {
	return whole{status, header, fmt.Sprintf(`{"error":{"message":"This is why: %d.","type":"some_type","param":"some_param","code":"some_code"}}`, status)}
}

// errorAnswers are refusals of every class in every form, to a client that does not ask again.
func errorAnswers() (all []act) {
	for _, status := range []int{400, 401, 402, 403, 404, 405, 408, 409, 413, 415, 418, 422, 429, 500, 502, 503, 504, 529} {
		all = append(all, act{name: fmt.Sprint("error ", status), do: "chat", opts: `"retries":0`, answer: openAIError(status, "")})
	}
	for _, form := range []struct {
		name   string
		answer whole
	}{
		{"too long", whole{400, "", `{"error":{"message":"This model's maximum context length is 8192 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`}},
		{"quota", whole{429, "Retry-After: 20", `{"error":{"message":"You exceeded your current quota.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}`}},
		{"vLLM", whole{400, "", `{"object":"error","message":"This is why.","type":"BadRequestError","param":null,"code":400}`}},
		{"a code that is a number", whole{422, "", `{"error":{"message":"This is why.","type":"Unprocessable","param":null,"code":422}}`}},
		{"FastAPI", whole{422, "", `{"detail":[{"loc":["body","messages"],"msg":"field required","type":"value_error.missing"}]}`}},
		{"HTML", whole{502, "Content-Type: text/html", `<html><body>Bad Gateway</body></html>`}},
		{"text", whole{500, "Content-Type: text/plain", `Internal Server Error`}},
		{"nothing", whole{500, "", ``}},
		{"a string", whole{400, "", `{"error":"This is why."}`}},
		{"headers", openAIError(429, "Retry-After: 7\nRetry-After-Ms: 7000\nX-Should-Retry: false\nX-RateLimit-Remaining-Requests: 0\nWWW-Authenticate: Bearer\nOpenAI-Processing-Ms: 5")},
	} {
		all = append(all, act{name: "error in the form of " + form.name, do: "chat", opts: `"retries":0`, answer: form.answer})
	}
	for _, status := range []int{400, 429, 503} {
		all = append(all, act{name: fmt.Sprint("no stream but ", status), do: "stream", opts: `"retries":0`, answer: openAIError(status, "")})
	}
	return append(all, act{name: "no response but 429", do: "responseStream", opts: `"retries":0`, answer: openAIError(429, "")})
}

// retries are refusals after which a client may ask again: at once, as it is told.
func retries() (all []act) {
	const soon = "Retry-After-Ms: 1"
	fine := chatAnswer(`"content":"At last."`, "stop")
	for _, status := range []int{408, 409, 429, 500, 502, 503, 504} {
		all = append(all, act{name: fmt.Sprint("try again after ", status), do: "chat", refusals: []whole{openAIError(status, soon)}, answer: fine})
	}
	return append(all,
		act{name: "try again after a second", do: "chat", refusals: []whole{openAIError(429, "Retry-After: 1")}, answer: fine},
		act{name: "try twice", do: "chat", refusals: []whole{openAIError(503, soon), openAIError(500, soon)}, answer: fine},
		act{name: "try in vain", do: "chat", opts: `"retries":1`, refusals: []whole{openAIError(503, soon), openAIError(503, soon), openAIError(503, soon)}, answer: fine},
		act{name: "try a stream again", do: "stream", refusals: []whole{openAIError(429, soon)}, writes: then(plain(helloChunks...), done)},
		act{name: "do not try again", do: "chat", refusals: []whole{openAIError(503, soon+"\nX-Should-Retry: false")}, answer: fine},
		act{name: "do try again", do: "chat", refusals: []whole{openAIError(400, soon+"\nX-Should-Retry: true")}, answer: fine},
	)
}
