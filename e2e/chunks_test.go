package e2e

import (
	"fmt"
	"strings"
)

// scriptedModel is a model name with a slash, like many real ones.
const scriptedModel = "acme/demo"

const (
	chunkPrefix = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"acme/demo",`
	doneEvent   = "data: [DONE]\n\n"
)

// deltaChunk returns a chunk of a streamed chat with the given delta.
func deltaChunk(d string) string {
	return chunkPrefix + `"choices":[{"index":0,"delta":` + d + `,"logprobs":null,"finish_reason":null}]}`
}

// textChunk returns a chunk with a text.
func textChunk(text string) string { return deltaChunk(`{"content":"` + text + `"}`) }

var (
	roleChunk  = deltaChunk(`{"role":"assistant","content":""}`)
	stopChunk  = chunkPrefix + `"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}`
	usageChunk = chunkPrefix + `"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":2}}}`

	// helloChunks is a minimal stream.
	helloChunks = []string{roleChunk, textChunk("Hello"), textChunk(", wörld "), textChunk("🌍!"), stopChunk}
)

// formatEvents returns an event for each chunk. The format has %s in place of the JSON.
func formatEvents(form string, chunks ...string) (events []string) {
	for _, c := range chunks {
		events = append(events, fmt.Sprintf(form, c))
	}
	return events
}

// dataEvents returns an event with a single data line for each chunk.
func dataEvents(chunks ...string) []string { return formatEvents("data: %s\n\n", chunks...) }

// appendWrites returns a copy of writes with more at the end.
func appendWrites(writes []string, more ...string) []string {
	return append(writes[:len(writes):len(writes)], more...)
}

// insertWrites returns a copy of writes with more before the third.
func insertWrites(writes []string, more ...string) []string {
	return append(append(writes[:2:2], more...), writes[2:]...)
}

// splitWrites splits a stream into writes of n bytes.
func splitWrites(n int, writes ...string) (pieces []string) {
	all := strings.Join(writes, "")
	for len(all) > n {
		pieces, all = append(pieces, all[:n]), all[n:]
	}
	return append(pieces, all)
}

// multiLineEvent returns an event whose JSON is split over several data lines.
func multiLineEvent(chunk string) string {
	return "data: " + strings.ReplaceAll(chunk, `,"`, ",\ndata: \"") + "\n\n"
}

// longText returns a text of about n bytes.
func longText(n int) string { return strings.Repeat("Once upon a time. ", n/18) }

// framingScripts returns scripts with the valid framings of an event stream and some invalid ones.
func framingScripts() (all []script) {
	add := func(name string, writes ...string) *script {
		all = append(all, script{name: name, operation: "stream", writes: writes})
		return &all[len(all)-1]
	}
	events := appendWrites(dataEvents(helloChunks...), doneEvent)
	stream := strings.Join(events, "")
	add("plain", events...)
	add("comments", strings.ReplaceAll(stream, "data: ", ": ping\n\ndata: "))
	add("a comment within an event", strings.ReplaceAll(stream, "data: ", ": ping\ndata: "))
	add("a comment in a separate write", insertWrites(events, ": ping\n\n", ":\n\n")...)
	add("many comments", appendWrites([]string{strings.Repeat(": ping\n\n", 200)}, events...)...)
	add("retry alone", insertWrites(events, "retry: 3000\n\n")...)
	add("id alone", insertWrites(events, "id: 7\n\n")...)
	add("event without data", insertWrites(events, "event: x\n\n")...)
	add("ping event", insertWrites(events, "event: ping\ndata: {}\n\n")...)
	add("empty data", insertWrites(events, "data:\n\n")...)
	add("no space after the colon", strings.ReplaceAll(stream, "data: ", "data:"))
	add("CRLF", strings.Split(strings.ReplaceAll(stream, "\n", "\r\n"), "\f")...)
	add("CRLF byte by byte", splitWrites(1, strings.ReplaceAll(stream, "\n", "\r\n"))...)
	add("CR", strings.ReplaceAll(stream, "\n", "\r"))
	add("multi-line data", multiLineEvent(roleChunk), multiLineEvent(textChunk("Hello")), multiLineEvent(textChunk(", wörld")), multiLineEvent(stopChunk), doneEvent)
	add("named and numbered events", appendWrites(formatEvents("event: chunk\nid: 7\ndata: %s\n\n", helloChunks...), doneEvent)...)
	add("byte order mark", appendWrites([]string{"\ufeff"}, events...)...)
	add("blank lines", strings.ReplaceAll(stream, "\n\n", "\n\n\n\n"))
	add("no [DONE]", dataEvents(helloChunks...)...)
	add("[DONE] without a space", appendWrites(dataEvents(helloChunks...), "data:[DONE]\n\n")...)
	add("[DONE] with a trailing space", appendWrites(dataEvents(helloChunks...), "data: [DONE] \n\n")...)
	add("[DONE] without a blank line", appendWrites(dataEvents(helloChunks...), "data: [DONE]")...)
	add("[DONE] within the last event", appendWrites(dataEvents(helloChunks[:4]...), "data: "+stopChunk+"\ndata: [DONE]\n\n")...)
	add("an event after [DONE]", appendWrites(events, dataEvents(textChunk(" And more."))...)...)
	add("last event without a blank line", appendWrites(dataEvents(helloChunks[:4]...), "data: "+stopChunk+"\n")...)
	add("null error", dataEvents(strings.Replace(roleChunk, "{", `{"error":null,`, 1), textChunk("Hello"), stopChunk)...)
	add("error event", insertWrites(events, `data: {"error":{"message":"out of memory","type":"server_error","param":null,"code":"oom"}}`+"\n\n")...)
	add("error event with spaces, error not first", insertWrites(events, `data: {"type": "error", "error": {"message": "out of memory", "type": "server_error", "code": 500}}`+"\n\n")...)
	add("error after a comment", insertWrites(events, ": ping\n\n", `data: {"error":{"message":"out of memory","type":"server_error","param":null,"code":"oom"}}`+"\n\n")...)
	add("named error event", insertWrites(events, "event: error\n"+`data: {"message":"out of memory"}`+"\n\n")...)
	add("not JSON", insertWrites(events, "data: {oops\n\n")...)
	add("usage chunk", appendWrites(dataEvents(appendWrites(helloChunks, usageChunk)...), doneEvent)...)
	add("usage on every chunk", appendWrites(formatEvents("data: %s\n\n", strings.Split(strings.ReplaceAll(strings.Join(helloChunks, "\f"), `"choices"`, `"usage":null,"choices"`), "\f")...), doneEvent)...)
	add("byte by byte", splitWrites(1, stream)...)
	add("split characters", splitWrites(2, stream)...)
	add("all in one write", stream)
	add("events split from their terminators", strings.SplitAfter(stream, "}")...)
	add("a long event", appendWrites(dataEvents(roleChunk, textChunk(longText(300_000)), stopChunk), doneEvent)...)
	add("a long event in pieces", splitWrites(1000, appendWrites(dataEvents(roleChunk, textChunk(longText(150_000)), textChunk("Hello"), stopChunk), doneEvent)...)...)
	add("many events", appendWrites(dataEvents(appendWrites(appendWrites([]string{roleChunk}, strings.Split(strings.Repeat(textChunk("x")+"\f", 500)+textChunk("y"), "\f")...), stopChunk)...), doneEvent)...)
	add("unusual deltas", appendWrites(dataEvents(deltaChunk(`{"role":null,"content":"Hello","tool_calls":[],"refusal":null,"function_call":null,"stop_reason":null}`),
		deltaChunk(`{"reasoning_content":"Hm."}`), deltaChunk(`{"reasoning":"Hm."}`), deltaChunk(`{}`), textChunk("\\ud83c\\udf0d\\u0000 \\\"\\n"), stopChunk), doneEvent)...)
	add("two choices", appendWrites(dataEvents(roleChunk, textChunk("Hello"), strings.Replace(textChunk("Bonjour"), `"index":0`, `"index":1`, 1), textChunk(" you"), stopChunk,
		strings.Replace(stopChunk, `"index":0`, `"index":1`, 1)), doneEvent)...)
	add("empty stream", "")
	add("[DONE] alone", doneEvent)
	add("a stream with Content-Length", events...).ending = endContentLength
	add("a stream ended by the connection", events...).ending = endConnectionClose
	add("a compressed stream", events...).ending = endGzip
	add("each event acknowledged", events...).acknowledge = true
	return append(all, truncatedScripts()...)
}

// truncatedScripts returns scripts whose stream is aborted. The client has acknowledged each
// complete text by then.
func truncatedScripts() (all []script) {
	half := dataEvents(helloChunks[:3]...)
	for _, a := range []script{
		{name: "aborted between events", writes: half},
		{name: "aborted within an event", writes: appendWrites(half, "data: "+textChunk("🌍!")[:100])},
		{name: "aborted before a blank line", writes: appendWrites(half, "data: "+stopChunk+"\n")},
		{name: "aborted within a long event", writes: appendWrites(half, "data: "+textChunk(longText(200_000))[:150_000])},
		{name: "aborted before [DONE]", writes: dataEvents(helloChunks[:4]...)},
	} {
		a.operation, a.acknowledge, a.ending = "stream", true, endAbort
		all = append(all, a)
	}
	return all
}
