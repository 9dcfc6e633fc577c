package ingress

import (
	"encoding/binary"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// The bytes that mark where text comes from. They are control characters that
// JSON strings may hold only as escapes, so plain text does not look like them by chance.
const (
	markRole    = 0x01 // a message ends, with its role
	markContent = 0x02 // its text
	markOpaque  = 0x03 // the hash of a part that is no text
	markItem    = 0x04 // an item of a list of prompts
)

// promptBlocks is the routing text of a request as chained hashes of its whole blocks of size bytes: each
// is made of the one before it and xxh64 of the block's bytes, see link. The chain begins with what makes an engine's prefix
// cache not fit: the model, its adapter, cache_salt and tools.
//
// The text is canonical, so that the same prompt is the same text however it was written: of messages the decoded
// text of their content, and then the roles; parts that are no text (images, calls) by the hash of their bytes; a
// prompt as its strings, or its token ids. What Anthropic's API and responses have beside the messages as system or
// instructions comes first, filled up to a whole block. The body must have been scanned, at best into h: what was not
// hashed then is now. bytes is the length of the text, with what is left of it behind the last whole block.
func (h *promptHasher) promptBlocks(p payload, body []byte, model, adapter string, size int) (blocks []uint64, bytes int) {
	other := h.size != size
	h.size = size
	if other || h.system.at != p.system {
		h.again(&h.system, p.system, body, instructions)
	}
	if other || h.text.at != p.text() {
		of := prompt
		if !p.messages.absent() {
			of = messages
		}
		h.again(&h.text, p.text(), body, of)
	}
	chain := seed(xxhash.Sum64String(model), p.cacheSalt.of(body), p.tools.of(body))
	if adapter != "" {
		chain = link(chain, xxhash.Sum64String(":"+adapter)) // as which no JSON value begins
	}
	blocks = make([]uint64, 0, len(h.system.blocks)+len(h.text.blocks))
	for _, s := range []section{h.system, h.text} {
		before := chain
		for _, own := range s.blocks {
			chain = link(before, own)
			blocks = append(blocks, chain)
		}
	}
	return blocks, h.system.bytes + h.text.bytes
}

// seed begins a chain with those values that are there.
func seed(chain uint64, values ...[]byte) uint64 {
	for _, raw := range values {
		if len(raw) > 0 {
			chain = link(chain, xxhash.Sum64(raw))
		}
	}
	return chain
}

// again hashes a value that was scanned before.
func (h *promptHasher) again(to *section, at span, body []byte, of part) {
	*to = section{blocks: to.blocks[:0]}
	if at.absent() {
		return
	}
	s := scanner{src: body[:at.end], pos: at.start}
	if err := h.read(&s, to, of); err != nil {
		panic("BUG: what was scanned is not valid: " + err.Error())
	}
}

// member reads the value of a member of the body, whose place in p is given, and hashes it if it is of the prompt. Of several
// sources of text it takes the first, which is nearly always the only one.
func (h *promptHasher) member(s *scanner, p *payload, at *span) error {
	if s.peek() == 'n' { // a null counts as absent
		return s.value()
	}
	switch at {
	case &p.system:
		return h.read(s, &h.system, instructions)
	case &p.messages:
		if h.text.at.absent() {
			return h.read(s, &h.text, messages)
		}
	case &p.prompt, &p.input, &p.query:
		if h.text.at.absent() {
			return h.read(s, &h.text, prompt)
		}
	}
	return s.value()
}

// opaque adds what is no text by its hash.
func (h *promptHasher) opaque(hash uint64) {
	var b [9]byte
	b[0] = markOpaque
	binary.LittleEndian.PutUint64(b[1:], hash)
	h.add(b[:])
}

// other reads a value and adds it by its hash.
func (h *promptHasher) other(s *scanner) error {
	raw, err := s.raw()
	h.opaque(xxhash.Sum64(raw))
	return err
}

// instructions reads what stands before the messages.
func (h *promptHasher) instructions(s *scanner) error {
	err := h.content(s)
	h.pad()
	return err
}

// prompt reads a prompt or input: a string, a list of strings, token ids, or messages.
func (h *promptHasher) prompt(s *scanner) error {
	switch s.peek() {
	case '"':
		return h.string(s)
	case '[':
		return s.each(func() error { return h.item(s) })
	default:
		raw, err := s.raw()
		h.add(raw)
		return err
	}
}

func (h *promptHasher) item(s *scanner) error {
	switch s.peek() {
	case '{':
		return h.message(s)
	case '"', '[':
		h.addByte(markItem)
		return h.prompt(s)
	default:
		raw, err := s.raw()
		h.add(raw)
		h.addByte(',')
		return err
	}
}

// messages reads a list of messages, or whatever stands in its place.
func (h *promptHasher) messages(s *scanner) error {
	if s.peek() != '[' {
		return h.other(s)
	}
	return s.each(func() error {
		if s.peek() == '{' {
			return h.message(s)
		}
		return h.other(s)
	})
}

// message reads one message: its content as it comes, and then its role and all else by hash, wherever they stand.
func (h *promptHasher) message(s *scanner) error {
	var role []byte
	var others uint64
	err := s.each(func() error {
		name := s.name.of(s.src)
		if string(name) == "content" {
			return h.content(s)
		}
		raw, err := s.raw()
		if string(name) == "role" {
			role = raw
		} else {
			others = seed(others, name, raw)
		}
		return err
	})
	h.addByte(markRole)
	h.add(role)
	if others != 0 {
		h.opaque(others)
	}
	return err
}

// content reads a message's content: text, or a list of parts.
func (h *promptHasher) content(s *scanner) error {
	h.addByte(markContent)
	switch s.peek() {
	case '"':
		return h.string(s)
	case '[':
		return s.each(func() error { return h.part(s) })
	default:
		return h.other(s)
	}
}

// part reads one part of a content: its text if it has any, else it is added by its hash.
func (h *promptHasher) part(s *scanner) error {
	switch s.peek() {
	case '"':
		return h.string(s)
	case '{':
	default:
		return h.other(s)
	}
	start, text := s.pos, false
	err := s.each(func() error {
		if text || s.peek() != '"' || string(s.name.of(s.src)) != "text" {
			return s.value()
		}
		text = true
		return h.string(s)
	})
	if !text {
		h.opaque(xxhash.Sum64(s.src[start:s.pos]))
	}
	return err
}

// escapes are the characters that a backslash and one other stand for, by the other.
var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// string reads a string as scanner.string does, and adds the text that it stands for.
func (h *promptHasher) string(s *scanner) error {
	for i := s.pos + 1; ; {
		end := plainEnd(s.src[:min(len(s.src), i+gathered)], i)
		h.add(s.src[i:end])
		i = end
		switch c := s.at(i); {
		case c == '"':
			s.pos = i + 1
			return nil
		case c != '\\' && c < ' ':
			return s.unexpected(i, " in a string")
		case c != '\\': // there is more of it
		case escapes[s.at(i+1)] != 0:
			h.addByte(escapes[s.src[i+1]])
			i += 2
		default:
			var err error
			if i, err = h.unicode(s, i); err != nil {
				return err
			}
		}
	}
}

// unicode reads the escape \uXXXX at i, or a pair of them, and returns the index behind it. Halves of surrogate pairs that
// stand alone become U+FFFD, as in encoding/json.
func (h *promptHasher) unicode(s *scanner, i int) (int, error) {
	behind, err := s.escape(i)
	if err != nil {
		return behind, err
	}
	r := unit(s.src[i:])
	if utf16.IsSurrogate(r) {
		low := rune(utf8.RuneError)
		pair := behind
		if s.at(behind) == '\\' && s.at(behind+1) == 'u' {
			if pair, err = s.escape(behind); err != nil {
				return pair, err
			}
			low = unit(s.src[behind:])
		}
		if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
			behind = pair
		}
	}
	var buf [utf8.UTFMax]byte
	h.add(utf8.AppendRune(buf[:0], r))
	return behind, nil
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
