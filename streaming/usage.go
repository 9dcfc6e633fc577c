package streaming

import "bytes"

// Usage holds the token counts reported by the upstream, 0 if none was reported.
type Usage struct {
	PromptTokens     int64 // all of the prompt, cached or not
	CompletionTokens int64
	CachedTokens     int64 // the part of PromptTokens found in the prefix cache
}

// usageCounts holds the numbers of usage objects under the names of each API. A response may have
// several objects, cumulative or with different numbers each, so the highest of each number is
// kept.
type usageCounts struct {
	prompt, completion, total int64 // chat, completions, embeddings, rerank; of the total the prompt is a part
	input, output             int64 // responses and messages
	cached                    int64 // prompt_tokens_details, input_tokens_details: a part of the prompt or input
	cacheRead, cacheWritten   int64 // messages: beside the input
}

// usage combines the numbers. Numbers reported under the names of two APIs are not added.
func (n *usageCounts) usage() Usage {
	u := Usage{PromptTokens: n.prompt, CompletionTokens: max(n.completion, n.output), CachedTokens: max(n.cached, n.cacheRead)}
	if u.PromptTokens == 0 {
		u.PromptTokens = n.input + n.cacheRead + n.cacheWritten
	}
	if u.PromptTokens == 0 {
		u.PromptTokens = max(0, n.total-u.CompletionTokens)
	}
	return u
}

// field returns the number of a key in a usage object, at any depth, or nil if the key is none of
// them.
func (n *usageCounts) field(name []byte) *int64 {
	switch string(name) {
	case "prompt_tokens":
		return &n.prompt
	case "completion_tokens":
		return &n.completion
	case "total_tokens":
		return &n.total
	case "input_tokens":
		return &n.input
	case "output_tokens":
		return &n.output
	case "cached_tokens":
		return &n.cached
	case "cache_read_input_tokens":
		return &n.cacheRead
	case "cache_creation_input_tokens":
		return &n.cacheWritten
	}
	return nil
}

// scan reads the usage objects in JSON text, at any depth, without parsing the rest: a quote inside
// a JSON string is always escaped, so the bytes "usage" with both quotes, followed by a colon, can
// only be a key. One fast search rules out text without counts, which is almost every event of a
// stream.
func (n *usageCounts) scan(p []byte) {
	if !bytes.Contains(p, []byte(`_tokens"`)) {
		return
	}
	for key := []byte(`"usage"`); ; {
		i := bytes.Index(p, key)
		if i < 0 {
			return
		}
		p = p[i+len(key):]
		if value, ok := valueOf(p); ok && value[0] == '{' {
			n.readObject(value)
		}
	}
}

// readObject reads the object at the start of p.
func (n *usageCounts) readObject(p []byte) {
	depth := 0
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return
			}
		case '"':
			text := stringAt(p[i+1:])
			i += len(text) + 1
			if value, ok := valueOf(p[min(i+1, len(p)):]); ok {
				if field := n.field(text); field != nil {
					*field = max(*field, number(value))
				}
			}
		}
	}
}

// stringAt returns the bytes of p before the closing quote of the string, all of p if there is
// none.
func stringAt(p []byte) []byte {
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '\\':
			i++
		case '"':
			return p[:i]
		}
	}
	return p
}

// valueOf returns the bytes behind the colon at the start of p. It reports false if there is no
// colon or nothing behind.
func valueOf(p []byte) ([]byte, bool) {
	value, ok := bytes.CutPrefix(trimSpace(p), []byte(":"))
	value = trimSpace(value)
	return value, ok && len(value) > 0
}

// trimSpace removes leading JSON white space. bytes.TrimLeft would be slower, because it builds a
// set.
func trimSpace(p []byte) []byte {
	for len(p) > 0 && (p[0] == ' ' || p[0] == '\n' || p[0] == '\t' || p[0] == '\r') {
		p = p[1:]
	}
	return p
}

// maxTokens caps numbers, so nonsense cannot overflow.
const maxTokens = 1 << 40

// number returns the value of the digits at the start of p, 0 if there are none.
func number(p []byte) (n int64) {
	for _, c := range p {
		if c < '0' || c > '9' || n >= maxTokens {
			break
		}
		n = n*10 + int64(c-'0')
	}
	return min(n, maxTokens)
}
