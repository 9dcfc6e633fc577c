package replay

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
)

// mooncakeBlock is the tokens of a block of Mooncake's traces.
const mooncakeBlock = 512

// readMooncake reads lines of the form that Mooncake's traces are published in,
//
//	{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}
//
// without encoding/json, which would take as long as the replay. It stops at the first line of any other form, and
// leaves that and all that follow in rest to those who know JSON in full.
func (t *Trace) readMooncake(in *bufio.Reader) (rest []byte, err error) {
	var m mooncakeLine
	for {
		text, end := in.ReadSlice('\n') // an end within a line is seen again by who reads on
		if end != nil && len(text) == 0 || !m.scan(text) {
			return bytes.Clone(text), nil
		}
		if err := t.add(mooncakeBlock, m.request()); err != nil {
			return nil, fmt.Errorf("record %d: %w", len(t.Requests)+1, err)
		}
	}
}

// mooncakeLine is a line of Mooncake's as it is scanned. It is used again for the next one.
type mooncakeLine struct {
	time, prompt, answers uint64
	runs                  []run
	memory                []run // of the requests' runs, to be cut off piece by piece
}

// scan takes a line apart; false if it is of another form.
func (m *mooncakeLine) scan(text []byte) (ok bool) {
	for _, field := range []struct {
		name  string
		value *uint64
	}{{`{"timestamp":`, &m.time}, {`"input_length":`, &m.prompt}, {`"output_length":`, &m.answers}} {
		if text, ok = after(text, field.name); !ok {
			return false
		}
		if *field.value, text, ok = number(text); !ok {
			return false
		}
		if text, ok = after(text, `,`); !ok {
			return false
		}
	}
	if text, ok = after(text, `"hash_ids":`); ok {
		if text, ok = after(text, `[`); ok {
			text, ok = m.scanIDs(text)
		}
	}
	return ok && len(bytes.TrimLeft(text, " \t\r\n")) == 0
}

// scanIDs takes the ids apart and what closes the list and the line.
func (m *mooncakeLine) scanIDs(text []byte) (rest []byte, ok bool) {
	m.runs = m.runs[:0]
	for {
		id, rest, ok := number(text)
		if !ok {
			return nil, false
		}
		m.runs = appendID(m.runs, id)
		if len(rest) == 0 || rest[0] != ',' {
			return after(rest, `]}`)
		}
		length := len(text) - len(rest) + 1
		n := ascending(text, length)
		m.runs[len(m.runs)-1].count += n
		text = text[(n+1)*length:]
	}
}

// ascending is how many numbers follow the first one, which is so long with its spaces and its comma, that are as long and
// in each of which the last digit is one more than in the one before. Most ids are such: a comparison is all that they need.
func ascending(text []byte, length int) (n int) {
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

// after is what comes after the text that is expected, and spaces before it.
func after(text []byte, expected string) (rest []byte, ok bool) {
	return bytes.CutPrefix(bytes.TrimLeft(text, " "), []byte(expected))
}

// number is the integer that the text begins with after spaces; false if there is none that a float64 holds exactly.
func number(text []byte) (n uint64, rest []byte, ok bool) {
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

func (m *mooncakeLine) request() Request {
	if n := len(m.runs); n > cap(m.memory)-len(m.memory) {
		m.memory = make([]run, 0, max(n, 4096))
	}
	m.memory = append(m.memory, m.runs...)
	runs := m.memory[len(m.memory)-len(m.runs) : len(m.memory) : len(m.memory)]
	return Request{
		At: seconds(float64(m.time) / 1e3), Prompt: int(m.prompt), Output: int(m.answers), Follows: -1, runs: runs,
	}
}

// addMooncake adds the request of a line that was decoded.
func (t *Trace) addMooncake(l *line) error {
	r := Request{At: seconds(l.Timestamp / 1e3), Prompt: l.InputLength, Output: l.OutputLength, Follows: -1}
	for _, id := range l.HashIDs {
		r.runs = appendID(r.runs, id)
	}
	return t.add(mooncakeBlock, r)
}
