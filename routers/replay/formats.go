package replay

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
)

// TextBlock is the bytes of a block of text, by default.
const TextBlock = 256

const (
	bytesPerToken = 4  // about how many make a token
	tokensBlock   = 16 // token ids in a block
	// farthest is the latest time that a trace may name; the earliest is 0.
	farthest = 250 * 365 * 24 * time.Hour
)

// Open reads a trace, plain or compressed with gzip, in any of the formats that
// it tells apart by the first line:
//
//   - Mooncake: JSON lines with hash_ids of 512 tokens;
//   - sessions of WEKA's kv-cache-tester: a JSON line per session, with hash_runs;
//   - LMCache: JSON lines with the text of input and output, which is cut into blocks of textBlock bytes;
//   - token ids: JSON lines with input_tok_ids;
//   - berth's own decision log: JSON lines with v, see addDecision;
//   - arrivals, as Azure's: CSV of times and sizes, with nothing about content, see readCSV.
func Open(path string, textBlock int) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := Read(f, textBlock)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// Read is Open for what is not a file.
func Read(r io.Reader, textBlock int) (*Trace, error) {
	in := bufio.NewReaderSize(r, 1<<20)
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		zip, err := gzip.NewReader(in)
		if err != nil {
			return nil, err
		}
		in = bufio.NewReaderSize(zip, 1<<20)
	}
	first, err := skipBlank(in)
	if err == io.EOF {
		return nil, errors.New("the trace is empty")
	}
	if err != nil {
		return nil, err
	}
	t := new(Trace)
	if first == '{' {
		err = t.readLines(in, textBlock)
	} else {
		err = t.readCSV(in)
	}
	if err != nil {
		return nil, err
	}
	if len(t.Requests) == 0 {
		return nil, errors.New("the trace has no requests")
	}
	t.settle()
	return t, nil
}

// skipBlank reads past white space and a byte order mark, and returns the byte that follows, which it leaves.
func skipBlank(in *bufio.Reader) (byte, error) {
	for {
		next, err := in.Peek(1)
		if err != nil {
			return 0, err
		}
		if !strings.Contains(" \t\r\n\xef\xbb\xbf", string(next)) {
			return next[0], nil
		}
		in.Discard(1)
	}
}

// settle orders the requests and has the first come at time 0.
func (t *Trace) settle() {
	t.Requests = sorted(t.Requests)
	if t.Sessions > 0 {
		return
	}
	start := t.Requests[0].At
	for i := range t.Requests {
		t.Requests[i].At -= start
	}
}

// line is a line of any of the JSON formats.
type line struct {
	// Mooncake; of LMCache only Timestamp, in microseconds.
	Timestamp    float64  `json:"timestamp"`
	InputLength  int      `json:"input_length"`
	OutputLength int      `json:"output_length"`
	HashIDs      []uint64 `json:"hash_ids"`
	// WEKA
	ID        string `json:"id"`
	BlockSize int    `json:"block_size"`
	Scope     string `json:"hash_id_scope"`
	Turns     []turn `json:"requests"`
	// LMCache
	Input     *string `json:"input"`
	Output    string  `json:"output"`
	SessionID string  `json:"session_id"`
	// token ids
	Arrival     int64    `json:"arrival_time_ns"`
	OutputToks  int      `json:"output_toks"`
	InputTokens []uint32 `json:"input_tok_ids"`
	decision
}

// turn is a request of a WEKA session, or requests of a subagent within it.
type turn struct {
	T     float64     `json:"t"` // seconds
	In    int         `json:"in"`
	Out   int         `json:"out"`
	API   float64     `json:"api_time"`
	Runs  [][2]uint64 `json:"hash_runs"`
	IDs   []uint64    `json:"hash_ids"` // as in the original, instead of runs
	Turns []turn      `json:"requests"`
}

func (t *Trace) readLines(in *bufio.Reader, textBlock int) error {
	rest, err := t.readMooncake(in)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(io.MultiReader(bytes.NewReader(rest), in))
	texts := textReader{block: textBlock, last: make(map[string]int)}
	log := logReader{last: make(map[[2]string]answered)}
	for n := len(t.Requests) + 1; ; n++ {
		var l line
		err := decoder.Decode(&l)
		if err == io.EOF {
			log.settle(t)
			return nil
		}
		if err != nil {
			return fmt.Errorf("record %d: %w", n, err)
		}
		switch {
		case l.Version != nil:
			err = log.add(t, &l.decision)
		case l.Turns != nil:
			err = t.addSession(&l)
		case l.HashIDs != nil:
			err = t.addMooncake(&l)
		case l.Input != nil:
			err = t.add(tokensOf(textBlock), texts.request(&l, len(t.Requests)))
		case l.InputTokens != nil:
			err = t.add(tokensBlock, tokenRequest(&l))
		default:
			err = errors.New("it has none of v, requests, hash_ids, input and input_tok_ids, by which the formats are told apart")
		}
		if err != nil {
			return fmt.Errorf("record %d: %w", n, err)
		}
	}
}

// add takes a request that was cut into blocks of that many tokens.
func (t *Trace) add(blockTokens int, r Request) error {
	switch {
	case t.BlockTokens == 0:
		t.BlockTokens = blockTokens
	case t.BlockTokens != blockTokens:
		return fmt.Errorf("blocks of %d tokens after some of %d", blockTokens, t.BlockTokens)
	}
	if r.At < 0 || r.At > farthest {
		return errors.New("its time is below 0 or out of all reason")
	}
	if r.Prompt < 0 || r.Output < 0 || r.Prompt > math.MaxInt32 || r.Output > math.MaxInt32 {
		return fmt.Errorf("it has %d prompt tokens and %d of output", r.Prompt, r.Output)
	}
	r.Prompt = max(r.Prompt, 1)
	if len(t.Requests) == cap(t.Requests) {
		t.Requests = slices.Grow(t.Requests, len(t.Requests)+1) // by more than append, which copies often
	}
	t.Requests = append(t.Requests, r)
	return nil
}

// addSession adds the turns of a session. A subagent's turns are its own
// conversation, begun after the last turn before it.
func (t *Trace) addSession(l *line) error {
	if l.BlockSize <= 0 {
		return fmt.Errorf("its block_size is %d", l.BlockSize)
	}
	t.Sessions++
	return t.addTurns(l, l.Turns, 0, -1, 0)
}

// addTurns adds turns whose times count from start, the first following a
// request that was answered at the time done.
func (t *Trace) addTurns(l *line, turns []turn, start float64, follows int, done float64) error {
	for _, turn := range turns {
		at := start + turn.T
		if turn.Turns != nil {
			if err := t.addTurns(l, turn.Turns, at, follows, done); err != nil {
				return err
			}
			continue
		}
		r := Request{
			At: seconds(at), Session: l.ID, Prompt: turn.In, Output: turn.Out,
			Follows: follows, Gap: seconds(max(0, at-done)),
			session: t.Sessions - 1,
		}
		if l.Scope != "global" {
			r.seed = xxhash.Sum64String(l.ID)
		}
		for _, id := range turn.IDs {
			r.runs = appendID(r.runs, id)
		}
		for _, pair := range turn.Runs {
			if pair[1] > math.MaxInt32 {
				return fmt.Errorf("a run of %d blocks", pair[1])
			}
			r.runs = append(r.runs, run{pair[0], int(pair[1])})
		}
		follows, done = len(t.Requests), at+max(0, turn.API)
		if err := t.add(l.BlockSize, r); err != nil {
			return err
		}
	}
	return nil
}

// textReader cuts text into blocks. What follows what it knows by the session.
type textReader struct {
	block int // bytes
	last  map[string]int
}

func (x *textReader) request(l *line, index int) Request {
	r := Request{
		At: seconds(l.Timestamp / 1e6), Session: l.SessionID,
		Prompt: tokensOf(len(*l.Input)), Output: tokensOf(len(l.Output)), Follows: -1,
	}
	for text := *l.Input; len(text) >= x.block; text = text[x.block:] {
		r.runs = append(r.runs, run{xxhash.Sum64String(text[:x.block]), 1})
	}
	if l.SessionID == "" {
		return r
	}
	if last, ok := x.last[l.SessionID]; ok {
		r.Follows = last
	}
	x.last[l.SessionID] = index
	return r
}

func tokenRequest(l *line) Request {
	r := Request{At: time.Duration(l.Arrival), Prompt: len(l.InputTokens), Output: l.OutputToks, Follows: -1}
	for ids := l.InputTokens; len(ids) >= tokensBlock; ids = ids[tokensBlock:] {
		hash := uint64(0)
		for _, id := range ids[:tokensBlock] {
			hash = mix(hash ^ uint64(id))
		}
		r.runs = append(r.runs, run{hash, 1})
	}
	return r
}

// tokensOf estimates the tokens of text.
func tokensOf(bytes int) int { return (bytes + bytesPerToken - 1) / bytesPerToken }

// seconds is a time. What is out of all reason stays so.
func seconds(s float64) time.Duration {
	const most = farthest + 365*24*time.Hour
	return time.Duration(max(-most.Seconds(), min(s, most.Seconds())) * float64(time.Second))
}
