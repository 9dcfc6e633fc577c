package replay

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
)

// mooncakeBlock is the number of tokens per block in Mooncake's traces.
const mooncakeBlock = 512

// readMooncake reads lines of the form of Mooncake's published traces,
//
//	{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}
//
// without encoding/json, which would take as long as the replay. It stops at the first line of any
// other form and returns that line in rest; the following lines are still in the reader.
func (t *Trace) readMooncake(in *bufio.Reader) (rest []byte, err error) {
	var m mooncakeLine
	for {
		text, end := in.ReadSlice('\n') // io.EOF within a line is returned again by the next read
		if end != nil && len(text) == 0 || !m.scan(text) {
			return bytes.Clone(text), nil
		}
		if err := t.addRequest(mooncakeBlock, m.newRequest()); err != nil {
			return nil, fmt.Errorf("record %d: %w", len(t.Requests)+1, err)
		}
	}
}

// A mooncakeLine holds the fields of a scanned line, and is reused for the next line.
type mooncakeLine struct {
	time, prompt, output uint64
	runs                 []run
	memory               []run // from which the runs of requests are allocated
}

// scan reads a line. It reports false for any other form.
func (m *mooncakeLine) scan(text []byte) (ok bool) {
	for _, field := range []struct {
		name  string
		value *uint64
	}{{`{"timestamp":`, &m.time}, {`"input_length":`, &m.prompt}, {`"output_length":`, &m.output}} {
		if text, ok = skipToken(text, field.name); !ok {
			return false
		}
		if *field.value, text, ok = scanNumber(text); !ok {
			return false
		}
		if text, ok = skipToken(text, `,`); !ok {
			return false
		}
	}
	if text, ok = skipToken(text, `"hash_ids":`); ok {
		if text, ok = skipToken(text, `[`); ok {
			text, ok = m.scanIDs(text)
		}
	}
	return ok && len(bytes.TrimLeft(text, " \t\r\n")) == 0
}

// scanIDs reads the ids and the brackets behind them.
func (m *mooncakeLine) scanIDs(text []byte) (rest []byte, ok bool) {
	m.runs = m.runs[:0]
	for {
		id, rest, ok := scanNumber(text)
		if !ok {
			return nil, false
		}
		m.runs = appendID(m.runs, id)
		if len(rest) == 0 || rest[0] != ',' {
			return skipToken(rest, `]}`)
		}
		length := len(text) - len(rest) + 1
		n := countAscending(text, length)
		m.runs[len(m.runs)-1].count += n
		text = text[(n+1)*length:]
	}
}

// countAscending returns the number of numbers after the first one, of the same length and each one
// more in the last digit than its predecessor. length is the length of the first number with spaces
// and comma. Most ids are of this kind, and need only one comparison.
func countAscending(text []byte, length int) (n int) {
	if length > 8 || len(text) < 8 {
		return 0
	}
	whole := ^uint64(0) >> (64 - 8*length)
	one := uint64(1) << (8 * (length - 2)) // before the comma
	expected := binary.LittleEndian.Uint64(text) & whole
	for range '9' - text[length-2] {
		expected += one
		if text = text[length:]; len(text) < 8 || binary.LittleEndian.Uint64(text)&whole != expected {
			break
		}
		n++
	}
	return n
}

// skipToken returns the text behind leading spaces and an expected token.
func skipToken(text []byte, expected string) (rest []byte, ok bool) {
	return bytes.CutPrefix(bytes.TrimLeft(text, " "), []byte(expected))
}

// scanNumber returns the integer behind leading spaces. It reports false if there is none, or none
// exact in a float64.
func scanNumber(text []byte) (n uint64, rest []byte, ok bool) {
	from := 0
	for from < len(text) && text[from] == ' ' {
		from++
	}
	to := from
	for to < len(text) && text[to]-'0' < 10 {
		n = 10*n + uint64(text[to]-'0')
		to++
	}
	digits := to - from
	ok = digits > 0 && digits <= 15 && (digits == 1 || text[from] != '0')
	return n, text[to:], ok
}

// newRequest returns the request of the scanned line.
func (m *mooncakeLine) newRequest() Request {
	if n := len(m.runs); n > cap(m.memory)-len(m.memory) {
		m.memory = make([]run, 0, max(n, 4096))
	}
	m.memory = append(m.memory, m.runs...)
	runs := m.memory[len(m.memory)-len(m.runs) : len(m.memory) : len(m.memory)]
	return Request{
		At: seconds(float64(m.time) / 1e3), Prompt: int(m.prompt), Output: int(m.output), Follows: -1, runs: runs,
	}
}

// addMooncake adds the request of a decoded record.
func (t *Trace) addMooncake(l *record) error {
	r := Request{At: seconds(l.Timestamp / 1e3), Prompt: l.InputLength, Output: l.OutputLength, Follows: -1}
	for _, id := range l.HashIDs {
		r.runs = appendID(r.runs, id)
	}
	return t.addRequest(mooncakeBlock, r)
}
