package openai

import (
	"encoding/binary"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// The separators of the canonical text. They are control characters, which JSON strings hold only
// as escapes, so text does not contain them by chance.
const (
	markRole    = 0x01 // the end of a message; the role follows
	markContent = 0x02 // the content of a message follows
	markNonText = 0x03 // the hash of a non-text part follows
	markItem    = 0x04 // an item of a list of prompts follows
)

// Blocks returns the chained hashes of the whole blocks of a prompt, of size bytes each, and the
// length of the prompt in bytes, including the rest after the last whole block. f must be the
// result of a scan of body. Sections not hashed into h by the scan, or not in this size, are hashed
// now.
//
// Each hash is chained from the previous one and the xxHash64 of the block's bytes: see chainHash.
// The chain begins with the values on which an engine's cached prefixes depend: the model, the
// adapter ("" for none), cache_salt and tools.
//
// The hashed text is canonical, whatever the spelling of the JSON. A message contributes the
// decoded text of the content and then the role; a non-text part (images, calls) the hash of its
// bytes; a prompt its strings or token IDs. The system or instructions come first, padded to a
// whole block.
func (h *PromptHasher) Blocks(f Fields, body []byte, model, adapter string, size int) (blocks []uint64, bytes int) {
	resized := h.size != size
	h.size = size
	if resized || h.system.at != f.System {
		h.rehash(&h.system, f.System, body, instructionsSection)
	}
	if resized || h.text.at != f.RoutingText() {
		kind := promptSection
		if !f.Messages.Absent() {
			kind = messagesSection
		}
		h.rehash(&h.text, f.RoutingText(), body, kind)
	}
	chain := chainValues(xxhash.Sum64String(model), f.CacheSalt.Of(body), f.Tools.Of(body))
	if adapter != "" {
		chain = chainHash(chain, xxhash.Sum64String(":"+adapter)) // no JSON value begins with a colon
	}
	blocks = make([]uint64, 0, len(h.system.blocks)+len(h.text.blocks))
	for _, s := range []section{h.system, h.text} {
		before := chain
		for _, block := range s.blocks {
			chain = chainHash(before, block)
			blocks = append(blocks, chain)
		}
	}
	return blocks, h.system.bytes + h.text.bytes
}

// chainValues extends a chain by the present raw values.
func chainValues(chain uint64, values ...[]byte) uint64 {
	for _, raw := range values {
		if len(raw) > 0 {
			chain = chainHash(chain, xxhash.Sum64(raw))
		}
	}
	return chain
}

// rehash hashes a value of a body after the scan.
func (h *PromptHasher) rehash(to *section, at Span, body []byte, kind sectionKind) {
	*to = section{blocks: to.blocks[:0]}
	if at.Absent() {
		return
	}
	s := scanner{src: body[:at.End], pos: at.Start}
	if err := h.hashSection(&s, to, kind); err != nil {
		panic("BUG: a scanned value is not valid: " + err.Error())
	}
}

// hashMember reads the value of a member of the body and hashes values of the prompt. field is the
// member's field of f, nil if f has none. Of several sources of routing text only the first in the
// body is hashed, nearly always the right one; Blocks hashes another one if needed.
func (h *PromptHasher) hashMember(s *scanner, f *Fields, field *Span) error {
	if s.peek() == 'n' { // a null counts as absent
		return s.skipValue()
	}
	switch field {
	case &f.System:
		return h.hashSection(s, &h.system, instructionsSection)
	case &f.Messages:
		if h.text.at.Absent() {
			return h.hashSection(s, &h.text, messagesSection)
		}
	case &f.Prompt, &f.Input, &f.Query:
		if h.text.at.Absent() {
			return h.hashSection(s, &h.text, promptSection)
		}
	}
	return s.skipValue()
}

// nonText appends the hash of a non-text value.
func (h *PromptHasher) nonText(hash uint64) {
	var b [9]byte
	b[0] = markNonText
	binary.LittleEndian.PutUint64(b[1:], hash)
	h.appendText(b[:])
}

// unknown reads a value of any type and appends the hash of the raw bytes.
func (h *PromptHasher) unknown(s *scanner) error {
	raw, err := s.rawValue()
	h.nonText(xxhash.Sum64(raw))
	return err
}

// hashInstructions reads a system prompt or instructions.
func (h *PromptHasher) hashInstructions(s *scanner) error {
	err := h.hashContent(s)
	h.padBlock()
	return err
}

// hashPrompt reads a prompt or input: a string, a list of strings, token IDs, or messages.
func (h *PromptHasher) hashPrompt(s *scanner) error {
	switch s.peek() {
	case '"':
		return h.hashString(s)
	case '[':
		return s.forEach(func() error { return h.hashItem(s) })
	default:
		raw, err := s.rawValue()
		h.appendText(raw)
		return err
	}
}

// hashItem reads one item of a list of prompts.
func (h *PromptHasher) hashItem(s *scanner) error {
	switch s.peek() {
	case '{':
		return h.hashMessage(s)
	case '"', '[':
		h.appendByte(markItem)
		return h.hashPrompt(s)
	default:
		raw, err := s.rawValue()
		h.appendText(raw)
		h.appendByte(',')
		return err
	}
}

// hashMessages reads a list of messages, or a value of the wrong type in place of a list.
func (h *PromptHasher) hashMessages(s *scanner) error {
	if s.peek() != '[' {
		return h.unknown(s)
	}
	return s.forEach(func() error {
		if s.peek() == '{' {
			return h.hashMessage(s)
		}
		return h.unknown(s)
	})
}

// hashMessage reads one message. It appends the content, then the role, then one hash of all other
// members, whatever their order in the body.
func (h *PromptHasher) hashMessage(s *scanner) error {
	var role []byte
	var rest uint64
	err := s.forEach(func() error {
		name := s.name.Of(s.src)
		if string(name) == "content" {
			return h.hashContent(s)
		}
		raw, err := s.rawValue()
		if string(name) == "role" {
			role = raw
		} else {
			rest = chainValues(rest, name, raw)
		}
		return err
	})
	h.appendByte(markRole)
	h.appendText(role)
	if rest != 0 {
		h.nonText(rest)
	}
	return err
}

// hashContent reads the content of a message: text, or a list of parts.
func (h *PromptHasher) hashContent(s *scanner) error {
	h.appendByte(markContent)
	switch s.peek() {
	case '"':
		return h.hashString(s)
	case '[':
		return s.forEach(func() error { return h.hashPart(s) })
	default:
		return h.unknown(s)
	}
}

// hashPart reads one part of a content and appends the text, or the hash of a part without text.
func (h *PromptHasher) hashPart(s *scanner) error {
	switch s.peek() {
	case '"':
		return h.hashString(s)
	case '{':
	default:
		return h.unknown(s)
	}
	start, text := s.pos, false
	err := s.forEach(func() error {
		if text || s.peek() != '"' || string(s.name.Of(s.src)) != "text" {
			return s.skipValue()
		}
		text = true
		return h.hashString(s)
	})
	if !text {
		h.nonText(xxhash.Sum64(s.src[start:s.pos]))
	}
	return err
}

// escapes maps the second character of a two-character escape to the encoded character.
var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// hashString reads a string as scanner.skipString does, and appends the decoded text.
func (h *PromptHasher) hashString(s *scanner) error {
	for i := s.pos + 1; ; {
		end := indexSpecial(s.src[:min(len(s.src), i+batchSize)], i)
		h.appendText(s.src[i:end])
		i = end
		switch c := s.at(i); {
		case c == '"':
			s.pos = i + 1
			return nil
		case c != '\\' && c < ' ':
			return s.unexpectedAt(i, " in a string")
		case c != '\\': // the end of a batch
		case escapes[s.at(i+1)] != 0:
			h.appendByte(escapes[s.src[i+1]])
			i += 2
		default:
			var err error
			if i, err = h.hashUnicodeEscape(s, i); err != nil {
				return err
			}
		}
	}
}

// hashUnicodeEscape reads the escape \uXXXX at i, or a surrogate pair of them, and returns the
// index after it. A lone surrogate becomes U+FFFD, as in encoding/json.
func (h *PromptHasher) hashUnicodeEscape(s *scanner, i int) (int, error) {
	after, err := s.skipEscape(i)
	if err != nil {
		return after, err
	}
	r := utf16Unit(s.src[i:])
	if utf16.IsSurrogate(r) {
		low := rune(utf8.RuneError)
		pair := after
		if s.at(after) == '\\' && s.at(after+1) == 'u' {
			if pair, err = s.skipEscape(after); err != nil {
				return pair, err
			}
			low = utf16Unit(s.src[after:])
		}
		if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
			after = pair
		}
	}
	var buf [utf8.UTFMax]byte
	h.appendText(utf8.AppendRune(buf[:0], r))
	return after, nil
}

// utf16Unit returns the UTF-16 code unit of the escape \uXXXX at the start of raw.
func utf16Unit(raw []byte) (r rune) {
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
