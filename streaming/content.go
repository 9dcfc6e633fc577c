package streaming

import "bytes"

// A contentDetector detects events with generated content, as opposed to a role, a finish reason or
// usage. The keys of the texts identify the chunks and events of all common APIs.
//
// Consecutive events look alike, so the detector remembers the position of the last text: most
// often the next event has a text at the same position, and a comparison of a few bytes is enough.
type contentDetector struct {
	offset int      // of the last text in the event, behind the opening quote; 0 if none was found yet
	prefix [20]byte // the bytes before offset: the end of the key, the colon, the quote
}

// hasContent reports whether the data of an event has a non-empty text.
func (c *contentDetector) hasContent(data []byte) bool {
	if c.offset > 0 && len(data) > c.offset && data[c.offset] != '"' && bytes.HasSuffix(data[:c.offset], c.prefix[:]) {
		return true
	}
	offset := textOffset(data)
	if offset < len(c.prefix) {
		return offset > 0
	}
	c.offset = offset
	copy(c.prefix[:], data[offset-len(c.prefix):offset])
	return true
}

// textOffset returns the offset of the first non-empty text, 0 if there is none. The events of the
// Responses API repeat their texts when they are complete, so only their delta counts.
func textOffset(data []byte) int {
	onlyDelta := bytes.Contains(data, []byte(`"response.`))
	for start := 0; ; {
		i := bytes.Index(data[start:], []byte(`":`))
		if i < 0 {
			return 0
		}
		name := data[start : start+i]
		start += i + len(`":`)
		value := trimSpace(data[start:])
		if len(value) > 1 && value[0] == '"' && value[1] != '"' && isTextKey(name[bytes.LastIndexByte(name, '"')+1:], onlyDelta) {
			return len(data) - len(value) + 1
		}
	}
}

// isTextKey reports whether a key holds generated text: content, reasoning or tool call arguments.
func isTextKey(name []byte, onlyDelta bool) bool {
	switch string(name) {
	case "delta":
		return true
	case "content", "text", "reasoning_content", "reasoning", "thinking", "arguments", "partial_json", "refusal":
		return !onlyDelta
	}
	return false
}
