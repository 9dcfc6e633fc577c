package ingress

import (
	"fmt"
	"unicode/utf8"
)

// maxDepth bounds how deep arrays and objects may nest. Engines give up far earlier.
const maxDepth = 1024

// A scanner walks JSON once, left to right, and accepts what encoding/json.Valid accepts, up to maxDepth. It neither
// allocates nor recurses, so that no input costs more than its length. After an error it is of no further use.
//
// Each method starts at pos and leaves pos behind what it read. White space is skipped by whoever expects a token next.
type scanner struct {
	src     []byte
	pos     int
	name    span           // the member name read last: its characters as sent, without the quotes
	closers [maxDepth]byte // '}' or ']' for each open container
	depth   int            // how many are open
}

// value reads one value of any depth.
func (s *scanner) value() error {
	for floor := s.depth; ; {
		inside, err := s.begin()
		for err == nil && !inside {
			if s.depth == floor {
				return nil
			}
			inside, err = s.next()
		}
		if err != nil {
			return err
		}
	}
}

// begin reads a scalar or an empty container, or opens a container and stops before the first value inside it.
func (s *scanner) begin() (inside bool, err error) {
	switch s.peek() {
	case '"':
		return false, s.string()
	case '{':
		return s.open('}')
	case '[':
		return s.open(']')
	case 't':
		return false, s.literal("true")
	case 'f':
		return false, s.literal("false")
	case 'n':
		return false, s.literal("null")
	default:
		return false, s.number()
	}
}

func (s *scanner) open(closer byte) (inside bool, err error) {
	s.pos++
	s.space()
	if s.peek() == closer {
		s.pos++
		return false, nil
	}
	if s.depth == maxDepth {
		return false, errTooDeep
	}
	s.closers[s.depth] = closer
	s.depth++
	return true, s.memberName()
}

// next goes on after a value inside a container: before the next value in it, or behind the container.
func (s *scanner) next() (inside bool, err error) {
	s.space()
	switch s.peek() {
	case ',':
		s.pos++
		s.space()
		return true, s.memberName()
	case s.closers[s.depth-1]:
		s.pos++
		s.depth--
		return false, nil
	default:
		return false, s.unexpected(s.pos, "")
	}
}

// memberName reads a name and its colon inside an object, nothing inside an array.
func (s *scanner) memberName() error {
	if s.closers[s.depth-1] != '}' {
		return nil
	}
	if s.peek() != '"' {
		return s.unexpected(s.pos, " before a member name")
	}
	start := s.pos + 1
	if err := s.string(); err != nil {
		return err
	}
	s.name = span{start, s.pos - 1}
	s.space()
	if s.peek() != ':' {
		return s.unexpected(s.pos, " after a member name")
	}
	s.pos++
	s.space()
	return nil
}

// each reads a container, or a scalar, and has member read each value in it, each name being in s.name. A value that holds
// no others is read, too.
func (s *scanner) each(member func() error) error {
	inside, err := s.begin()
	for inside && err == nil {
		if err = member(); err == nil {
			inside, err = s.next()
		}
	}
	return err
}

// raw reads a value and returns its bytes, which are good whatever the error is.
func (s *scanner) raw() ([]byte, error) {
	start := s.pos
	err := s.value()
	return s.src[start:s.pos], err
}

// end expects nothing but white space.
func (s *scanner) end() error {
	s.space()
	if s.pos < len(s.src) {
		return s.unexpected(s.pos, " after the JSON value")
	}
	return nil
}

func (s *scanner) string() error {
	for i := plainEnd(s.src, s.pos+1); ; i = plainEnd(s.src, i) {
		switch s.at(i) {
		case '"':
			s.pos = i + 1
			return nil
		case '\\':
			var err error
			if i, err = s.escape(i); err != nil {
				return err
			}
		default:
			return s.unexpected(i, " in a string")
		}
	}
}

// escape checks the escape sequence at i and returns the index behind it.
func (s *scanner) escape(i int) (int, error) {
	i++
	switch s.at(i) {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 1, nil
	case 'u':
		for range 4 {
			i++
			if c := s.at(i); !isDigit(c) && (c|0x20 < 'a' || c|0x20 > 'f') {
				return i, s.unexpected(i, " in an escape sequence")
			}
		}
		return i + 1, nil
	default:
		return i, s.unexpected(i, " in an escape sequence")
	}
}

func (s *scanner) number() error {
	i := s.pos
	if s.at(i) == '-' {
		i++
	}
	integer := i
	if i = s.digits(i); i == integer {
		return s.unexpected(i, "")
	}
	if s.src[integer] == '0' {
		i = integer + 1 // a digit behind a leading zero is left for the caller to refuse
	}
	if s.at(i) == '.' {
		fraction := i + 1
		if i = s.digits(fraction); i == fraction {
			return s.unexpected(i, " in a number")
		}
	}
	if s.at(i)|0x20 == 'e' {
		i++
		if c := s.at(i); c == '+' || c == '-' {
			i++
		}
		exponent := i
		if i = s.digits(exponent); i == exponent {
			return s.unexpected(i, " in a number")
		}
	}
	s.pos = i
	return nil
}

func (s *scanner) digits(i int) int {
	for i < len(s.src) && isDigit(s.src[i]) {
		i++
	}
	return i
}

func (s *scanner) literal(word string) error {
	for i := range len(word) {
		if s.at(s.pos+i) != word[i] {
			return s.unexpected(s.pos+i, "")
		}
	}
	s.pos += len(word)
	return nil
}

func (s *scanner) space() {
	if s.pos < len(s.src) && s.src[s.pos] <= ' ' {
		s.spaces()
	}
}

func (s *scanner) spaces() {
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

// at returns the byte at i, and behind the end a zero, which no JSON text may contain.
func (s *scanner) at(i int) byte {
	if i < len(s.src) {
		return s.src[i]
	}
	return 0
}

// unexpected tells of the byte at i, or of the end if i is there.
func (s *scanner) unexpected(i int, where string) error {
	if i >= len(s.src) {
		return &syntaxError{Offset: int64(len(s.src)), What: "unexpected end"}
	}
	what := fmt.Sprintf("unexpected byte 0x%02x%s", s.src[i], where)
	if r, _ := utf8.DecodeRune(s.src[i:]); r != utf8.RuneError {
		what = fmt.Sprintf("unexpected character %q%s", r, where)
	}
	return &syntaxError{Offset: int64(i), What: what}
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
