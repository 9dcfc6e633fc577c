package ingress

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// The bytes that mark where text comes from. They are control characters that
// JSON strings may hold only as escapes, so plain text does not look like them by chance.
const (
	markRole    = 0x01 // a message begins, with its role
	markContent = 0x02 // its text
	markOpaque  = 0x03 // the hash of a part that is no text
	markItem    = 0x04 // an item of a list of prompts
)

// promptBlocks is the routing text of a request as chained hashes of its whole blocks of size bytes: each
// is made of the one before it and xxh64 of the block's bytes, see link. The chain begins with what makes an engine's prefix
// cache not fit: the model, its adapter, cache_salt and tools.
//
// The text is canonical, so that the same prompt is the same text however it was written: of messages the roles
// and then the decoded text of their content; parts that are no text (images, calls) by the hash of their bytes; a
// prompt as its strings, or its token ids. What Anthropic's API and responses have beside the messages as system or
// instructions comes first, as a message. The body must have been scanned. Blocks are appended to into; bytes is the
// length of the text, with what is left of it behind the last whole block.
func promptBlocks(into []uint64, p payload, body []byte, model, adapter string, size int) (blocks []uint64, bytes int) {
	text := p.text().of(body)
	h := hashers.Get().(*promptHasher)
	defer hashers.Put(h)
	h.size, h.chain, h.rest = size, xxhash.Sum64String(model), h.rest[:0]
	h.blocks = slices.Grow(into, len(text)/size)
	if adapter != "" {
		h.seed([]byte(":" + adapter)) // as which no JSON value begins
	}
	h.seed(p.cacheSalt.of(body))
	h.seed(p.tools.of(body))
	if !p.system.absent() { // as a message of that role
		h.mark(markRole)
		h.text([]byte(`"system"`))
		h.content(&cursor{src: p.system.of(body)})
	}
	c := cursor{src: text}
	switch {
	case len(c.src) == 0:
	case p.messages.absent():
		h.prompt(&c)
	default:
		h.messages(&c)
	}
	h.flush()
	blocks, h.blocks = h.blocks, nil
	return blocks, (len(blocks)-len(into))*size + len(h.rest)
}

// promptHasher cuts text into blocks and chains their hashes.
type promptHasher struct {
	size   int
	chain  uint64
	blocks []uint64
	rest   []byte // what is not hashed yet, less than gathered bytes or one block
}

// gathered is how much text comes together before it is hashed: bytes that were stored one by one cannot be read eight at a
// time at once, and many blocks at a time go faster.
const gathered = 4 << 10

// hashers are kept for the memory of their rest.
var hashers = sync.Pool{New: func() any { return new(promptHasher) }}

func (h *promptHasher) seed(raw []byte) {
	if len(raw) > 0 {
		h.chain = link(h.chain, xxhash.Sum64(raw))
	}
}

// link is the hash of a block behind the one whose hash is chain. Of each of both every other value gives another result, so
// that no block can make forgotten what came before it; the rest is the finish of MurmurHash3.
func link(chain, block uint64) uint64 {
	x := chain ^ block*0x9e3779b97f4a7c15
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// text adds text. Short pieces are gathered; of a long one whole blocks are hashed where they lie.
func (h *promptHasher) text(p []byte) {
	if len(h.rest)+len(p) < max(gathered, h.size) {
		h.rest = append(h.rest, p...)
		return
	}
	if begun := len(h.rest) % h.size; begun > 0 {
		n := min(h.size-begun, len(p))
		h.rest = append(h.rest, p[:n]...)
		p = p[n:]
	}
	h.flush()
	h.rest = append(h.rest, h.whole(p)...)
}

// flush hashes the whole blocks of what was gathered.
func (h *promptHasher) flush() { h.rest = h.rest[:copy(h.rest, h.whole(h.rest))] }

// whole hashes the whole blocks of p, and returns what is behind them.
func (h *promptHasher) whole(p []byte) []byte {
	for len(p) >= h.size {
		h.chain = link(h.chain, xxhash.Sum64(p[:h.size]))
		h.blocks = append(h.blocks, h.chain)
		p = p[h.size:]
	}
	return p
}

func (h *promptHasher) mark(m byte) { h.text([]byte{m}) }

// opaque adds what is no text by its hash.
func (h *promptHasher) opaque(raw []byte) {
	h.mark(markOpaque)
	h.text(binary.LittleEndian.AppendUint64(nil, xxhash.Sum64(raw)))
}

// prompt adds a prompt or input: a string, a list of strings, token ids, or messages.
func (h *promptHasher) prompt(c *cursor) {
	switch c.kind() {
	case '"':
		h.string(c)
	case '[':
		for c.items() {
			switch c.kind() {
			case '{':
				h.message(c)
			case '"', '[':
				h.mark(markItem)
				h.prompt(c)
			default:
				h.text(c.skip())
				h.mark(',')
			}
		}
	default:
		h.text(c.skip())
	}
}

// messages adds a list of messages, or whatever stands in its place.
func (h *promptHasher) messages(c *cursor) {
	if c.kind() != '[' {
		h.opaque(c.skip())
		return
	}
	for c.items() {
		if c.kind() == '{' {
			h.message(c)
		} else {
			h.opaque(c.skip())
		}
	}
}

// message adds one message: its role, its content, and then all else by hash. Content that stands before the role waits for it.
func (h *promptHasher) message(c *cursor) {
	var content, others cursor
	var role bool
	for name := range c.members {
		switch {
		case string(name) == "role" && !role:
			role = true
			h.mark(markRole)
			h.text(c.skip())
		case string(name) == "content" && role && content.src == nil:
			h.content(c)
		case string(name) == "content":
			content = cursor{src: c.skip()}
		default:
			others.src = append(append(others.src, name...), c.skip()...)
		}
	}
	if !role {
		h.mark(markRole)
	}
	if content.src != nil {
		h.content(&content)
	}
	if others.src != nil {
		h.opaque(others.src)
	}
}

// content adds a message's content: text, or a list of parts.
func (h *promptHasher) content(c *cursor) {
	h.mark(markContent)
	switch c.kind() {
	case '"':
		h.string(c)
	case '[':
		for c.items() {
			h.part(c)
		}
	default:
		h.opaque(c.skip())
	}
}

// part adds one part of a content: its text if it has any, else its hash.
func (h *promptHasher) part(c *cursor) {
	switch c.kind() {
	case '"':
		h.string(c)
	case '{':
		whole := *c
		raw := c.skip()
		for name := range whole.members {
			if string(name) == "text" && whole.kind() == '"' {
				h.string(&whole)
				return
			}
			whole.skip()
		}
		h.opaque(raw)
	default:
		h.opaque(c.skip())
	}
}

// string adds the text that a JSON string stands for.
func (h *promptHasher) string(c *cursor) {
	c.space()
	raw, escaped := c.string()
	for {
		i := -1
		if escaped {
			i = bytes.IndexByte(raw, '\\')
		}
		if i < 0 {
			h.text(raw)
			return
		}
		h.text(raw[:i])
		var buf [utf8.UTFMax]byte
		n, used := unescape(buf[:], raw[i:])
		h.text(buf[:n])
		raw = raw[i+used:]
	}
}

// unescape decodes the escape at the start of raw into buf, and says how long both are. Halves of surrogate pairs
// that stand alone become U+FFFD, as in encoding/json.
func unescape(buf, raw []byte) (n, used int) {
	switch raw[1] {
	case 'b':
		buf[0] = '\b'
	case 'f':
		buf[0] = '\f'
	case 'n':
		buf[0] = '\n'
	case 'r':
		buf[0] = '\r'
	case 't':
		buf[0] = '\t'
	case 'u':
		r := unit(raw)
		used = 6
		if utf16.IsSurrogate(r) {
			low := rune(utf8.RuneError)
			if len(raw) >= 12 && raw[6] == '\\' && raw[7] == 'u' {
				low = unit(raw[6:])
			}
			if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
				used = 12
			}
		}
		return utf8.EncodeRune(buf, r), used
	default:
		buf[0] = raw[1]
	}
	return 1, 2
}

// unit is the UTF-16 code unit of the escape \uXXXX at the start of raw.
func unit(raw []byte) (r rune) {
	for _, c := range raw[2:6] {
		r <<= 4
		switch {
		case c <= '9':
			r |= rune(c - '0')
		default:
			r |= rune(c|0x20-'a') + 10
		}
	}
	return r
}
