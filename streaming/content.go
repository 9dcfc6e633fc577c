package streaming

import "bytes"

// content tells the events of a stream that bring something of what the model writes from those that do not: a role, a
// finish reason, usage. It knows the chunks and events of all common APIs by the names of their texts.
//
// The events of a stream are alike, so it remembers where the text of the last one began: most often the next one has
// its text at the same place, and a comparison of a few bytes is all.
type content struct {
	at   int      // where in the data the text began, behind its quote; 0 if none was found yet
	mark [20]byte // the bytes before it: the end of the key, the colon, the quote
}

// in tells whether the data of an event has a text that is not empty.
func (c *content) in(data []byte) bool {
	if c.at > 0 && len(data) > c.at && data[c.at] != '"' && bytes.HasSuffix(data[:c.at], c.mark[:]) {
		return true
	}
	at := textAt(data)
	if at < len(c.mark) {
		return at > 0
	}
	c.at = at
	copy(c.mark[:], data[at-len(c.mark):at])
	return true
}

// textAt finds where the first text begins, 0 if there is none. The events of responses also repeat their texts when they
// are complete; new is only what they call delta.
func textAt(data []byte) int {
	onlyDelta := bytes.Contains(data, []byte(`"response.`))
	for start := 0; ; {
		i := bytes.Index(data[start:], []byte(`":`))
		if i < 0 {
			return 0
		}
		name := data[start : start+i]
		start += i + len(`":`)
		value := trimSpace(data[start:])
		if len(value) > 1 && value[0] == '"' && value[1] != '"' && isText(name[bytes.LastIndexByte(name, '"')+1:], onlyDelta) {
			return len(data) - len(value) + 1
		}
	}
}

// isText tells the keys of what a model writes: answers, thoughts, arguments of calls.
func isText(name []byte, onlyDelta bool) bool {
	switch string(name) {
	case "delta":
		return true
	case "content", "text", "reasoning_content", "reasoning", "thinking", "arguments", "partial_json", "refusal":
		return !onlyDelta
	}
	return false
}
