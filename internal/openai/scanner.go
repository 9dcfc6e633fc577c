package openai

import (
	"fmt"
	"unicode/utf8"
)

// maxDepth is how deep arrays and objects may nest. Engines give up far earlier.
const maxDepth = 1024

// A scanner reads JSON once, left to right, and accepts exactly the texts that encoding/json.Valid
// accepts, up to maxDepth. Scanning neither allocates nor recurses, so the cost is linear in the
// length of any input. A scanner must not be used again after an error.
//
// Each method starts at pos and leaves pos after the token read. A method skips the white space
// before an expected token.
type scanner struct {
	src     []byte
	pos     int
	name    Span           // of the member read last: the characters as sent, without the quotes
	closers [maxDepth]byte // '}' or ']' for each open container
	depth   int            // number of open containers
}

// skipValue reads one value of any depth.
func (s *scanner) skipValue() error {
	for outer := s.depth; ; {
		inside, err := s.beginValue()
		for err == nil && !inside {
			if s.depth == outer {
				return nil
			}
			inside, err = s.nextValue()
		}
		if err != nil {
			return err
		}
	}
}

// beginValue reads a scalar or an empty container, or enters a container and stops before the first
// value inside. It reports whether it entered a container.
func (s *scanner) beginValue() (inside bool, err error) {
	switch s.peek() {
	case '"':
		return false, s.skipString()
	case '{':
		return s.openContainer('}')
	case '[':
		return s.openContainer(']')
	case 't':
		return false, s.skipLiteral("true")
	case 'f':
		return false, s.skipLiteral("false")
	case 'n':
		return false, s.skipLiteral("null")
	default:
		return false, s.skipNumber()
	}
}

func (s *scanner) openContainer(closer byte) (inside bool, err error) {
	s.pos++
	s.skipSpace()
	if s.peek() == closer {
		s.pos++
		return false, nil
	}
	if s.depth == maxDepth {
		return false, ErrTooDeep
	}
	s.closers[s.depth] = closer
	s.depth++
	return true, s.readMemberName()
}

// nextValue moves on after a value inside a container: before the next value, or after the
// container. It reports whether another value follows.
func (s *scanner) nextValue() (inside bool, err error) {
	s.skipSpace()
	switch s.peek() {
	case ',':
		s.pos++
		s.skipSpace()
		return true, s.readMemberName()
	case s.closers[s.depth-1]:
		s.pos++
		s.depth--
		return false, nil
	default:
		return false, s.unexpectedAt(s.pos, "")
	}
}

// readMemberName reads a name and the colon inside an object, nothing inside an array.
func (s *scanner) readMemberName() error {
	if s.closers[s.depth-1] != '}' {
		return nil
	}
	if s.peek() != '"' {
		return s.unexpectedAt(s.pos, " before a member name")
	}
	start := s.pos + 1
	if err := s.skipString(); err != nil {
		return err
	}
	s.name = Span{start, s.pos - 1}
	s.skipSpace()
	if s.peek() != ':' {
		return s.unexpectedAt(s.pos, " after a member name")
	}
	s.pos++
	s.skipSpace()
	return nil
}

// forEach reads a container and calls member before each value inside, which member must read. The
// name of an object's member is in s.name. A scalar is read without calling member.
func (s *scanner) forEach(member func() error) error {
	inside, err := s.beginValue()
	for inside && err == nil {
		if err = member(); err == nil {
			inside, err = s.nextValue()
		}
	}
	return err
}

// rawValue reads a value and returns the bytes; on an error, the bytes read so far.
func (s *scanner) rawValue() ([]byte, error) {
	start := s.pos
	err := s.skipValue()
	return s.src[start:s.pos], err
}

// expectEnd reads white space up to the end of the text.
func (s *scanner) expectEnd() error {
	s.skipSpace()
	if s.pos < len(s.src) {
		return s.unexpectedAt(s.pos, " after the JSON value")
	}
	return nil
}

func (s *scanner) skipString() error {
	for i := indexSpecial(s.src, s.pos+1); ; i = indexSpecial(s.src, i) {
		switch s.at(i) {
		case '"':
			s.pos = i + 1
			return nil
		case '\\':
			var err error
			if i, err = s.skipEscape(i); err != nil {
				return err
			}
		default:
			return s.unexpectedAt(i, " in a string")
		}
	}
}

// skipEscape validates the escape sequence at i and returns the index after it.
func (s *scanner) skipEscape(i int) (int, error) {
	i++
	switch s.at(i) {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 1, nil
	case 'u':
		for range 4 {
			i++
			if c := s.at(i); !isDigit(c) && (c|0x20 < 'a' || c|0x20 > 'f') {
				return i, s.unexpectedAt(i, " in an escape sequence")
			}
		}
		return i + 1, nil
	default:
		return i, s.unexpectedAt(i, " in an escape sequence")
	}
}

func (s *scanner) skipNumber() error {
	i := s.pos
	if s.at(i) == '-' {
		i++
	}
	integer := i
	if i = s.skipDigits(i); i == integer {
		return s.unexpectedAt(i, "")
	}
	if s.src[integer] == '0' {
		i = integer + 1 // the caller rejects a digit after a leading zero
	}
	if s.at(i) == '.' {
		fraction := i + 1
		if i = s.skipDigits(fraction); i == fraction {
			return s.unexpectedAt(i, " in a number")
		}
	}
	if s.at(i)|0x20 == 'e' {
		i++
		if c := s.at(i); c == '+' || c == '-' {
			i++
		}
		exponent := i
		if i = s.skipDigits(exponent); i == exponent {
			return s.unexpectedAt(i, " in a number")
		}
	}
	s.pos = i
	return nil
}

func (s *scanner) skipDigits(i int) int {
	for i < len(s.src) && isDigit(s.src[i]) {
		i++
	}
	return i
}

func (s *scanner) skipLiteral(word string) error {
	for i := range len(word) {
		if s.at(s.pos+i) != word[i] {
			return s.unexpectedAt(s.pos+i, "")
		}
	}
	s.pos += len(word)
	return nil
}

func (s *scanner) skipSpace() {
	if s.pos < len(s.src) && s.src[s.pos] <= ' ' {
		s.skipSpaces()
	}
}

func (s *scanner) skipSpaces() {
	for s.pos < len(s.src) {
		switch s.src[s.pos] {
		case ' ', '\n', '\r', '\t':
			s.pos++
		default:
			return
		}
	}
}

func (s *scanner) peek() byte { return s.at(s.pos) }

// at returns the byte at i; after the end 0, which no JSON text contains.
func (s *scanner) at(i int) byte {
	if i < len(s.src) {
		return s.src[i]
	}
	return 0
}

// unexpectedAt returns the error for the byte at i, or for the end of the text if i is there.
func (s *scanner) unexpectedAt(i int, where string) error {
	if i >= len(s.src) {
		return &SyntaxError{Offset: int64(len(s.src)), Problem: "unexpected end"}
	}
	what := fmt.Sprintf("unexpected byte 0x%02x%s", s.src[i], where)
	if r, _ := utf8.DecodeRune(s.src[i:]); r != utf8.RuneError {
		what = fmt.Sprintf("unexpected character %q%s", r, where)
	}
	return &SyntaxError{Offset: int64(i), Problem: what}
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
