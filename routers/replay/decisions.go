package replay

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// A decision is a line of berth's decision log.
type decision struct {
	Version      *int     `json:"v"`
	Time         float64  `json:"time_ms"` // arrival, since 1970
	Model        string   `json:"model"`
	Session      string   `json:"session"` // a keyed hash
	PromptBytes  int      `json:"prompt_bytes"`
	BlockBytes   int      `json:"block_bytes"`
	Blocks       []string `json:"blocks"` // keyed and chained hashes of the full blocks
	FirstToken   float64  `json:"ttft_ms"`
	Duration     float64  `json:"duration_ms"`
	PromptTokens *int     `json:"input_tokens"`
	OutputTokens *int     `json:"output_tokens"`
	Status       int      `json:"status"`
}

// tokenTime is a typical time per output token, by which output without a token count is estimated.
const tokenTime = 10 * time.Millisecond

// A logReader turns decisions into requests. It keeps the last request of each session, since
// decisions are logged at the end of requests.
type logReader struct {
	last          map[[2]string]completed // by model and session
	tokens, bytes float64                 // of prompts with a token count
	uncounted     []int                   // requests without one
}

// completed is a finished request and the time of the end.
type completed struct {
	index int
	at    time.Duration
}

// addDecision adds the request of a successful decision; the cost of others is unknown. A request
// of a session follows the session's last completed one, if that one ended before the arrival.
func (x *logReader) addDecision(t *Trace, d *decision) error {
	switch {
	case *d.Version != 1:
		return fmt.Errorf("decision log version %d is not supported, only version 1", *d.Version)
	case d.Status < 200 || d.Status > 299:
		return nil
	case d.BlockBytes < bytesPerToken || d.BlockBytes > 1<<30:
		return fmt.Errorf("invalid block_bytes %d", d.BlockBytes)
	case d.PromptBytes < 0 || int64(d.PromptBytes) > 1<<40:
		return fmt.Errorf("invalid prompt_bytes %d", d.PromptBytes)
	}
	bytes := max(d.PromptBytes, len(d.Blocks)*d.BlockBytes)
	r := Request{
		At: seconds(d.Time / 1e3), Session: d.Session, model: d.Model, Prompt: estimateTokens(bytes), Follows: -1,
		Output: int(max(0, min(milli(d.Duration-d.FirstToken)/tokenTime, math.MaxInt32))),
	}
	for _, block := range d.Blocks {
		hash, err := strconv.ParseUint(block, 16, 64)
		if err != nil {
			return fmt.Errorf("block %.20q is not a hash", block)
		}
		r.runs = appendID(r.runs, hash)
	}
	if d.PromptTokens != nil {
		r.Prompt = *d.PromptTokens
		x.tokens, x.bytes = x.tokens+float64(r.Prompt), x.bytes+float64(bytes)
	} else {
		x.uncounted = append(x.uncounted, len(t.Requests))
	}
	if d.OutputTokens != nil {
		r.Output = *d.OutputTokens
	}
	key := [2]string{d.Model, d.Session}
	if before, ok := x.last[key]; ok && d.Session != "" && before.at <= r.At {
		r.Follows, r.Gap = before.index, r.At-before.at
	}
	x.last[key] = completed{len(t.Requests), r.At + milli(max(0, d.Duration))}
	return t.addRequest(d.BlockBytes/bytesPerToken, r)
}

// scaleTokens corrects the estimated token counts by the ratio of the counted ones, so that blocks
// cover their prompts.
func (x *logReader) scaleTokens(t *Trace) {
	if x.tokens <= 0 || x.bytes == 0 {
		return
	}
	rate := x.tokens / x.bytes * bytesPerToken // relative to the estimate
	scaled := func(tokens int) int { return int(max(1, min(math.Round(float64(tokens)*rate), math.MaxInt32))) }
	t.BlockTokens = scaled(t.BlockTokens)
	for _, i := range x.uncounted {
		t.Requests[i].Prompt = scaled(t.Requests[i].Prompt)
	}
}

func milli(ms float64) time.Duration { return seconds(ms / 1e3) }
