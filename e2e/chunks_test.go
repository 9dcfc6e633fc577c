package e2e

import (
	"fmt"
	"strings"
)

// scriptedModel has a slash in its name, as many have.
const scriptedModel = "acme/demo"

const (
	chunkHead = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"acme/demo",`
	done      = "data: [DONE]\n\n"
)

// delta is a chunk of a streamed chat.
func delta(d string) string {
	return chunkHead + `"choices":[{"index":0,"delta":` + d + `,"logprobs":null,"finish_reason":null}]}`
}

// says is a chunk with a text.
func says(text string) string { return delta(`{"content":"` + text + `"}`) }

var (
	begins  = delta(`{"role":"assistant","content":""}`)
	stops   = chunkHead + `"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}`
	counted = chunkHead + `"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":2}}}`

	// helloChunks are the plainest of all streams.
	helloChunks = []string{begins, says("Hello"), says(", wörld "), says("🌍!"), stops}
)

// inEvents makes an event of each chunk, in a form with %s for the JSON.
func inEvents(form string, chunks ...string) (events []string) {
	for _, c := range chunks {
		events = append(events, fmt.Sprintf(form, c))
	}
	return events
}

func plain(chunks ...string) []string { return inEvents("data: %s\n\n", chunks...) }

// then adds writes at the end.
func then(writes []string, more ...string) []string {
	return append(writes[:len(writes):len(writes)], more...)
}

// amid adds writes before the third.
func amid(writes []string, more ...string) []string {
	return append(append(writes[:2:2], more...), writes[2:]...)
}

// inPieces cuts a stream into writes of n bytes.
func inPieces(n int, writes ...string) (pieces []string) {
	all := strings.Join(writes, "")
	for len(all) > n {
		pieces, all = append(pieces, all[:n]), all[n:]
	}
	return append(pieces, all)
}

// overLines writes JSON over several data lines.
func overLines(chunk string) string {
	return "data: " + strings.ReplaceAll(chunk, `,"`, ",\ndata: \"") + "\n\n"
}

// aStory is a text of so many bytes.
func aStory(n int) string { return strings.Repeat("Once upon a time. ", n/18) }

// framings are the forms that an event stream may take, and some that it must not.
func framings() (all []act) {
	add := func(name string, writes ...string) *act {
		all = append(all, act{name: name, do: "stream", writes: writes})
		return &all[len(all)-1]
	}
	events := then(plain(helloChunks...), done)
	stream := strings.Join(events, "")
	add("plain", events...)
	add("comments", strings.ReplaceAll(stream, "data: ", ": ping\n\ndata: "))
	add("a comment in an event's frame", strings.ReplaceAll(stream, "data: ", ": ping\ndata: "))
	add("a comment in a write of its own", amid(events, ": ping\n\n", ":\n\n")...)
	add("many comments", then([]string{strings.Repeat(": ping\n\n", 200)}, events...)...)
	add("retry alone", amid(events, "retry: 3000\n\n")...)
	add("id alone", amid(events, "id: 7\n\n")...)
	add("event without data", amid(events, "event: x\n\n")...)
	add("ping event", amid(events, "event: ping\ndata: {}\n\n")...)
	add("empty data", amid(events, "data:\n\n")...)
	add("no space", strings.ReplaceAll(stream, "data: ", "data:"))
	add("CRLF", strings.Split(strings.ReplaceAll(stream, "\n", "\r\n"), "\f")...)
	add("CRLF in two writes", inPieces(1, strings.ReplaceAll(stream, "\n", "\r\n"))...)
	add("CR", strings.ReplaceAll(stream, "\n", "\r"))
	add("multi-line data", overLines(begins), overLines(says("Hello")), overLines(says(", wörld")), overLines(stops), done)
	add("named and numbered events", then(inEvents("event: chunk\nid: 7\ndata: %s\n\n", helloChunks...), done)...)
	add("byte order mark", then([]string{"\ufeff"}, events...)...)
	add("blank lines", strings.ReplaceAll(stream, "\n\n", "\n\n\n\n"))
	add("no [DONE]", plain(helloChunks...)...)
	add("[DONE] without a space", then(plain(helloChunks...), "data:[DONE]\n\n")...)
	add("[DONE] with a space behind", then(plain(helloChunks...), "data: [DONE] \n\n")...)
	add("[DONE] without a blank line", then(plain(helloChunks...), "data: [DONE]")...)
	add("[DONE] in the last event's frame", then(plain(helloChunks[:4]...), "data: "+stops+"\ndata: [DONE]\n\n")...)
	add("more after [DONE]", then(events, plain(says(" And more."))...)...)
	add("last event without a blank line", then(plain(helloChunks[:4]...), "data: "+stops+"\n")...)
	add("null error", plain(strings.Replace(begins, "{", `{"error":null,`, 1), says("Hello"), stops)...)
	add("error event", amid(events, `data: {"error":{"message":"out of memory","type":"server_error","param":null,"code":"oom"}}`+"\n\n")...)
	add("error event, not first and spaced", amid(events, `data: {"type": "error", "error": {"message": "out of memory", "type": "server_error", "code": 500}}`+"\n\n")...)
	add("error after a comment", amid(events, ": ping\n\n", `data: {"error":{"message":"out of memory","type":"server_error","param":null,"code":"oom"}}`+"\n\n")...)
	add("named error event", amid(events, "event: error\n"+`data: {"message":"out of memory"}`+"\n\n")...)
	add("not JSON", amid(events, "data: {oops\n\n")...)
	add("usage chunk", then(plain(then(helloChunks, counted)...), done)...)
	add("usage on every chunk", then(inEvents("data: %s\n\n", strings.Split(strings.ReplaceAll(strings.Join(helloChunks, "\f"), `"choices"`, `"usage":null,"choices"`), "\f")...), done)...)
	add("byte by byte", inPieces(1, stream)...)
	add("letters apart", inPieces(2, stream)...)
	add("all in one write", stream)
	add("events apart from their ends", strings.SplitAfter(stream, "}")...)
	add("a long event", then(plain(begins, says(aStory(300_000)), stops), done)...)
	add("a long event in pieces", inPieces(1000, then(plain(begins, says(aStory(150_000)), says("Hello"), stops), done)...)...)
	add("many events", then(plain(then(then([]string{begins}, strings.Split(strings.Repeat(says("x")+"\f", 500)+says("y"), "\f")...), stops)...), done)...)
	add("odd deltas", then(plain(delta(`{"role":null,"content":"Hello","tool_calls":[],"refusal":null,"function_call":null,"stop_reason":null}`),
		delta(`{"reasoning_content":"Hm."}`), delta(`{"reasoning":"Hm."}`), delta(`{}`), says("\\ud83c\\udf0d\\u0000 \\\"\\n"), stops), done)...)
	add("two choices", then(plain(begins, says("Hello"), strings.Replace(says("Bonjour"), `"index":0`, `"index":1`, 1), says(" you"), stops,
		strings.Replace(stops, `"index":0`, `"index":1`, 1)), done)...)
	add("nothing", "")
	add("[DONE] alone", done)
	add("a stream with a length", events...).ends = withLength
	add("a stream until the connection ends", events...).ends = withoutFrame
	add("a compressed stream", events...).ends = zipped
	add("event by event", events...).hearing = true
	return append(all, brokenStreams()...)
}

// brokenStreams end amid the answer. What the client had until then it has heard.
func brokenStreams() (all []act) {
	half := plain(helloChunks[:3]...)
	for _, a := range []act{
		{name: "broken between events", writes: half},
		{name: "broken in an event", writes: then(half, "data: "+says("🌍!")[:100])},
		{name: "broken before a blank line", writes: then(half, "data: "+stops+"\n")},
		{name: "broken in a long event", writes: then(half, "data: "+says(aStory(200_000))[:150_000])},
		{name: "broken before [DONE]", writes: plain(helloChunks[:4]...)},
	} {
		a.do, a.hearing, a.ends = "stream", true, breaksOff
		all = append(all, a)
	}
	return all
}
