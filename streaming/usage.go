package streaming

import "bytes"

// Usage counts tokens as the upstream server reported them. Zero means that nothing was reported.
type Usage struct {
	PromptTokens     int64 // all of the prompt, cached or not
	CompletionTokens int64
	CachedTokens     int64 // the part of PromptTokens that the prefix cache served
}

// counts are the numbers of usage objects, under the names of each API. Several objects may pass in one answer, each with
// what was counted so far or with other numbers than the one before, so the highest of each number holds.
type counts struct {
	prompt, completion, total int64 // chat, completions, embeddings, rerank; of the total the prompt is a part
	input, output             int64 // responses and messages
	cached                    int64 // prompt_tokens_details, input_tokens_details: a part of the prompt or input
	cacheRead, cacheWritten   int64 // messages: beside the input
}

// usage is what the numbers say together. A server that speaks with two tongues is not counted twice.
func (n *counts) usage() Usage {
	u := Usage{PromptTokens: n.prompt, CompletionTokens: max(n.completion, n.output), CachedTokens: max(n.cached, n.cacheRead)}
	if u.PromptTokens == 0 {
		u.PromptTokens = n.input + n.cacheRead + n.cacheWritten
	}
	if u.PromptTokens == 0 {
		u.PromptTokens = max(0, n.total-u.CompletionTokens)
	}
	return u
}

// field finds the number that a usage object calls by name, at whatever depth; nil if it is none of ours.
func (n *counts) field(name []byte) *int64 {
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

// see finds the usage objects in JSON text, at whatever depth, without parsing the rest: inside a JSON string a quote is
// always escaped, so that the bytes "usage" with both quotes and a colon behind them can only be a key. Text without any
// count is left after one fast search, which is almost every event of a stream.
func (n *counts) see(p []byte) {
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
			n.read(value)
		}
	}
}

// read takes in the object that p starts with.
func (n *counts) read(p []byte) {
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

// stringAt is what stands in p before the quote that ends the string.
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

// valueOf returns what follows a key: behind the colon, not empty. It is false if p does not follow a key.
func valueOf(p []byte) ([]byte, bool) {
	value, ok := bytes.CutPrefix(trimSpace(p), []byte(":"))
	value = trimSpace(value)
	return value, ok && len(value) > 0
}

// trimSpace is bytes.TrimLeft for JSON's white space, without its preparations.
func trimSpace(p []byte) []byte {
	for len(p) > 0 && (p[0] == ' ' || p[0] == '\n' || p[0] == '\t' || p[0] == '\r') {
		p = p[1:]
	}
	return p
}

// mostTokens is beyond any count; higher numbers are nonsense and are cut off.
const mostTokens = 1 << 40

// number reads the digits that p starts with; none are zero.
func number(p []byte) (n int64) {
	for _, c := range p {
		if c < '0' || c > '9' || n >= mostTokens {
			break
		}
		n = n*10 + int64(c-'0')
	}
	return min(n, mostTokens)
}
