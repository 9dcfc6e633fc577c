package replay

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// decision is a line of berth's own decision log.
type decision struct {
	Version      *int     `json:"v"`
	Time         float64  `json:"time_ms"` // when the request came, since 1970
	Model        string   `json:"model"`
	Session      string   `json:"session"` // a keyed hash
	PromptBytes  int      `json:"prompt_bytes"`
	BlockBytes   int      `json:"block_bytes"`
	Blocks       []string `json:"blocks"` // keyed and chained hashes of the whole blocks
	FirstToken   float64  `json:"ttft_ms"`
	Duration     float64  `json:"duration_ms"`
	PromptTokens *int     `json:"input_tokens"`
	Answer       *int     `json:"output_tokens"`
	Status       int      `json:"status"`
}

// tokenTime is about how long a token of an answer takes, by which answers are
// measured whose tokens nobody counted.
const tokenTime = 10 * time.Millisecond

// logReader makes requests of decisions. It is known of each session how the
// request ended that ended last, for lines are written when requests end.
type logReader struct {
	last          map[[2]string]answered // by model and session
	tokens, bytes float64                // of prompts whose tokens were counted
	uncounted     []int                  // the others
}

// answered is a request and when it was over.
type answered struct {
	index int
	at    time.Duration
}

// add takes a request that was answered with success; what others would have cost, nobody knows. A
// request of a session follows the one that was over last, if that was before it came.
func (x *logReader) add(t *Trace, d *decision) error {
	switch {
	case *d.Version != 1:
		return fmt.Errorf("it is of version %d of the decision log, and 1 is known", *d.Version)
	case d.Status < 200 || d.Status > 299:
		return nil
	case d.BlockBytes < bytesPerToken || d.BlockBytes > 1<<30:
		return fmt.Errorf("its block_bytes is %d", d.BlockBytes)
	case d.PromptBytes < 0 || int64(d.PromptBytes) > 1<<40:
		return fmt.Errorf("its prompt_bytes is %d", d.PromptBytes)
	}
	bytes := max(d.PromptBytes, len(d.Blocks)*d.BlockBytes)
	r := Request{
		At: seconds(d.Time / 1e3), Session: d.Session, model: d.Model, Prompt: tokensOf(bytes), Follows: -1,
		Output: int(max(0, min(milli(d.Duration-d.FirstToken)/tokenTime, math.MaxInt32))),
	}
	for _, block := range d.Blocks {
		hash, err := strconv.ParseUint(block, 16, 64)
		if err != nil {
			return fmt.Errorf("its block %.20q is no hash", block)
		}
		r.runs = appendID(r.runs, hash)
	}
	if d.PromptTokens != nil {
		r.Prompt = *d.PromptTokens
		x.tokens, x.bytes = x.tokens+float64(r.Prompt), x.bytes+float64(bytes)
	} else {
		x.uncounted = append(x.uncounted, len(t.Requests))
	}
	if d.Answer != nil {
		r.Output = *d.Answer
	}
	key := [2]string{d.Model, d.Session}
	if before, ok := x.last[key]; ok && d.Session != "" && before.at <= r.At {
		r.Follows, r.Gap = before.index, r.At-before.at
	}
	x.last[key] = answered{len(t.Requests), r.At + milli(max(0, d.Duration))}
	return t.add(d.BlockBytes/bytesPerToken, r)
}

// settle has text be as many tokens as it was where they were counted, so that blocks
// cover the prompts that they are of.
func (x *logReader) settle(t *Trace) {
	if x.tokens <= 0 || x.bytes == 0 {
		return
	}
	rate := x.tokens / x.bytes * bytesPerToken // over what was assumed
	scaled := func(tokens int) int { return int(max(1, min(math.Round(float64(tokens)*rate), math.MaxInt32))) }
	t.BlockTokens = scaled(t.BlockTokens)
	for _, i := range x.uncounted {
		t.Requests[i].Prompt = scaled(t.Requests[i].Prompt)
	}
}

func milli(ms float64) time.Duration { return seconds(ms / 1e3) }
