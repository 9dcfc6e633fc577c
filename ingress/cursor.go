package ingress

import (
	"bytes"
	"encoding/binary"
	"iter"
	"math/bits"
)

// cursor walks JSON that is known to be valid, for which it is faster than the scanner: it need not
// look at every byte. It starts at a value and each method leaves it behind one.
type cursor struct {
	src []byte
	pos int
}

var _ iter.Seq[[]byte] = (*cursor)(nil).members

// kind is the first byte of the value at the cursor.
func (c *cursor) kind() byte {
	c.space()
	return c.src[c.pos]
}

// items goes on to the next value inside a list, false behind its end. It is first called
// at the list, and then behind each of its values.
func (c *cursor) items() bool {
	c.space()
	first := c.src[c.pos] == '['
	closed := c.src[c.pos] == ']'
	c.pos++
	if !first {
		return !closed
	}
	if c.space(); c.src[c.pos] == ']' {
		c.pos++
		return false
	}
	return true
}

// members yields the raw names in an object, without quotes, with the cursor at their values; the
// loop's body passes the value.
func (c *cursor) members(yield func(name []byte) bool) {
	c.space()
	for c.pos++; ; c.pos++ {
		if c.space(); c.src[c.pos] == '}' {
			c.pos++
			return
		}
		name, _ := c.string()
		c.space()
		c.pos++ // the colon
		if !yield(name) {
			return
		}
		if c.space(); c.src[c.pos] == '}' {
			c.pos++
			return
		}
	}
}

// skip passes a value and returns it raw.
func (c *cursor) skip() []byte {
	c.space()
	start := c.pos
	switch c.src[c.pos] {
	case '"':
		c.string()
	case '{', '[':
		for depth := 0; ; {
			switch c.src[c.pos] {
			case '"':
				c.string()
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			if c.pos++; depth == 0 {
				return c.src[start:c.pos]
			}
		}
	default:
		for c.pos < len(c.src) && !delimiter(c.src[c.pos]) {
			c.pos++
		}
	}
	return c.src[start:c.pos]
}

// string passes a string: up to the first quote with an even number of backslashes before it. It returns what is between the
// quotes; escaped tells whether there may be escapes in it.
func (c *cursor) string() (raw []byte, escaped bool) {
	c.pos++
	start := c.pos
	for ; c.pos < start+32 && c.pos+8 <= len(c.src); c.pos += 8 { // short ones are not worth a call of IndexByte
		if s := stops(binary.LittleEndian.Uint64(c.src[c.pos:])); s != 0 {
			end := c.pos + bits.TrailingZeros64(s)/8
			if c.src[end] != '"' {
				break
			}
			c.pos = end + 1
			return c.src[start:end], false
		}
	}
	for ; ; c.pos++ {
		c.pos += bytes.IndexByte(c.src[c.pos:], '"')
		back := c.pos
		for c.src[back-1] == '\\' {
			back--
		}
		if (c.pos-back)%2 == 0 {
			c.pos++
			return c.src[start : c.pos-1], true
		}
	}
}

func (c *cursor) space() {
	if c.pos < len(c.src) && c.src[c.pos] <= ' ' {
		c.spaces()
	}
}

func (c *cursor) spaces() {
	for c.pos < len(c.src) && (c.src[c.pos] == ' ' || c.src[c.pos] == '\n' || c.src[c.pos] == '\r' || c.src[c.pos] == '\t') {
		c.pos++
	}
}

func delimiter(b byte) bool {
	switch b {
	case ',', ']', '}', ' ', '\n', '\r', '\t', ':':
		return true
	}
	return false
}
