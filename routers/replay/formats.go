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

// TextBlock is the default size of a block of text in bytes.
const TextBlock = 256

const (
	bytesPerToken = 4  // estimate for text
	tokensBlock   = 16 // token ids per block
	// maxTime is the latest time in a trace; the earliest is 0.
	maxTime = 250 * 365 * 24 * time.Hour
)

// Open reads a trace file, plain or compressed with gzip, in one of these formats, which the first
// record identifies:
//
//   - Mooncake: JSON lines with hash_ids of 512 tokens;
//   - sessions of WEKA's kv-cache-tester: one JSON line per session, with hash_runs;
//   - LMCache: JSON lines with the text of input and output, which is split into blocks of textBlock bytes;
//   - token ids: JSON lines with input_tok_ids;
//   - berth's decision log: JSON lines with v;
//   - arrivals, such as Azure's: CSV of times and sizes, without content.
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

// Read reads a trace as [Open] does.
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
	t.normalize()
	return t, nil
}

// skipBlank skips white space and a byte order mark and returns the next byte without consuming it.
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

// normalize sorts the requests by time and shifts the times to make the first 0.
func (t *Trace) normalize() {
	t.Requests = sorted(t.Requests)
	if t.Sessions > 0 {
		return
	}
	start := t.Requests[0].At
	for i := range t.Requests {
		t.Requests[i].At -= start
	}
}

// record is a JSON record of any format.
type record struct {
	// Mooncake; LMCache has only Timestamp, in microseconds
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

// turn is a request of a WEKA session, or the requests of a subagent within the session.
type turn struct {
	T     float64     `json:"t"` // seconds
	In    int         `json:"in"`
	Out   int         `json:"out"`
	API   float64     `json:"api_time"`
	Runs  [][2]uint64 `json:"hash_runs"`
	IDs   []uint64    `json:"hash_ids"` // in the first version of the format, in place of runs
	Turns []turn      `json:"requests"`
}

func (t *Trace) readLines(in *bufio.Reader, textBlock int) error {
	rest, err := t.readMooncake(in)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(io.MultiReader(bytes.NewReader(rest), in))
	texts := textReader{block: textBlock, last: make(map[string]int)}
	log := logReader{last: make(map[[2]string]completed)}
	for n := len(t.Requests) + 1; ; n++ {
		var l record
		err := decoder.Decode(&l)
		if err == io.EOF {
			log.scaleTokens(t)
			return nil
		}
		if err != nil {
			return fmt.Errorf("record %d: %w", n, err)
		}
		switch {
		case l.Version != nil:
			err = log.addDecision(t, &l.decision)
		case l.Turns != nil:
			err = t.addSession(&l)
		case l.HashIDs != nil:
			err = t.addMooncake(&l)
		case l.Input != nil:
			err = t.addRequest(estimateTokens(textBlock), texts.newRequest(&l, len(t.Requests)))
		case l.InputTokens != nil:
			err = t.addRequest(tokensBlock, tokenRequest(&l))
		default:
			err = errors.New("unknown format: none of v, requests, hash_ids, input and input_tok_ids is present")
		}
		if err != nil {
			return fmt.Errorf("record %d: %w", n, err)
		}
	}
}

// addRequest appends a request with blocks of blockTokens tokens.
func (t *Trace) addRequest(blockTokens int, r Request) error {
	switch {
	case t.BlockTokens == 0:
		t.BlockTokens = blockTokens
	case t.BlockTokens != blockTokens:
		return fmt.Errorf("blocks of %d tokens after some of %d", blockTokens, t.BlockTokens)
	}
	if r.At < 0 || r.At > maxTime {
		return errors.New("time is negative or out of range")
	}
	if r.Prompt < 0 || r.Output < 0 || r.Prompt > math.MaxInt32 || r.Output > math.MaxInt32 {
		return fmt.Errorf("invalid token counts: %d of the prompt, %d of the output", r.Prompt, r.Output)
	}
	r.Prompt = max(r.Prompt, 1)
	if len(t.Requests) == cap(t.Requests) {
		t.Requests = slices.Grow(t.Requests, len(t.Requests)+1) // append grows large slices by less
	}
	t.Requests = append(t.Requests, r)
	return nil
}

// addSession adds the turns of a session. The turns of a subagent are a conversation of their own,
// which starts after the previous turn.
func (t *Trace) addSession(l *record) error {
	if l.BlockSize <= 0 {
		return fmt.Errorf("invalid block_size %d", l.BlockSize)
	}
	t.Sessions++
	return t.addTurns(l, l.Turns, 0, -1, 0)
}

// addTurns adds turns, with times relative to start. The first follows the request at index
// follows, which ended at the time done.
func (t *Trace) addTurns(l *record, turns []turn, start float64, follows int, done float64) error {
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
				return fmt.Errorf("run of %d blocks is too long", pair[1])
			}
			r.runs = append(r.runs, run{pair[0], int(pair[1])})
		}
		follows, done = len(t.Requests), at+max(0, turn.API)
		if err := t.addRequest(l.BlockSize, r); err != nil {
			return err
		}
	}
	return nil
}

// A textReader splits text into blocks. A request follows the previous one of the session.
type textReader struct {
	block int            // bytes
	last  map[string]int // the index of the last request, by session
}

func (x *textReader) newRequest(l *record, index int) Request {
	r := Request{
		At: seconds(l.Timestamp / 1e6), Session: l.SessionID,
		Prompt: estimateTokens(len(*l.Input)), Output: estimateTokens(len(l.Output)), Follows: -1,
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

func tokenRequest(l *record) Request {
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

// estimateTokens estimates the tokens of text.
func estimateTokens(bytes int) int { return (bytes + bytesPerToken - 1) / bytesPerToken }

// seconds returns s as a duration. Times out of range are clamped to a value still out of range.
func seconds(s float64) time.Duration {
	const most = maxTime + 365*24*time.Hour
	return time.Duration(max(-most.Seconds(), min(s, most.Seconds())) * float64(time.Second))
}
