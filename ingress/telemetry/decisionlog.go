package telemetry

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"berth/config"
	"berth/streaming"
)

// decisionLog writes one line of JSON per finished request for a model: placement and outcome, for
// a replay with another policy.
//
// No line contains text of a client or an engine. Hashes of prompts and sessions are keyed by a
// pseudonymizer; the key is not in the log.
//
// The zero value is off.
type decisionLog struct {
	pseudonymizer atomic.Pointer[pseudonymizer] // nil while the log is off

	mu     sync.Mutex     // guards the fields below
	random *pseudonymizer // used without a configured key; made once, so that reloads keep the hashes
	spool  *spool         // nil until the log is first on
}

// open opens the configured file for appending and returns the file with the pseudonymizer. Both
// are nil if the log is off.
func (l *decisionLog) open(c config.DecisionLog) (io.WriteCloser, *pseudonymizer, error) {
	if c.Path == "" {
		return nil, nil, nil
	}
	key := os.Getenv(c.KeyEnv)
	if c.KeyEnv != "" && key == "" {
		return nil, nil, fmt.Errorf("the decision log: the environment variable %s, which should hold its key, is not set", c.KeyEnv)
	}
	out, err := os.OpenFile(c.Path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, nil, fmt.Errorf("the decision log: %w", err)
	}
	if key != "" {
		return out, newPseudonymizer([]byte(key)), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.random == nil {
		l.random = newPseudonymizer([]byte(rand.Text()))
	}
	return out, l.random, nil
}

// setOutput directs further lines to out and closes the previous output; nil turns the log off.
func (l *decisionLog) setOutput(out io.WriteCloser, p *pseudonymizer, m *metrics, log *slog.Logger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spool == nil && out != nil {
		l.spool = newSpool("the decision log", func(lines int) { m.decisionLogDropped.Add(float64(lines)) }, log)
	}
	l.pseudonymizer.Store(p) // after the spool is set: record reads it without the lock
	if l.spool != nil {
		l.spool.setOutput(out)
	}
}

// close writes the remaining lines. No request may be in progress any more.
func (l *decisionLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spool != nil {
		l.spool.close()
	}
}

// decisionLine is one line of the log. routers/replay reads it.
type decisionLine struct {
	Version      int         `json:"v"`
	TimeMS       float64     `json:"time_ms"` // when the request header was read, in Unix time
	Model        string      `json:"model"`
	Session      string      `json:"session,omitempty"`
	PromptBytes  int         `json:"prompt_bytes"`
	BlockBytes   int         `json:"block_bytes"`
	Blocks       blockHashes `json:"blocks"`
	Replica      string      `json:"replica"` // of the last attempt; empty if none was chosen
	Policy       string      `json:"policy"`
	Rank         int         `json:"rank"`
	Match        float64     `json:"match"`
	WaitedMS     float64     `json:"waited_ms"`
	TTFTMS       float64     `json:"ttft_ms"` // 0 if no response began
	DurationMS   float64     `json:"duration_ms"`
	InputTokens  *int64      `json:"input_tokens,omitempty"`
	OutputTokens *int64      `json:"output_tokens,omitempty"`
	Status       int         `json:"status"`
}

// record writes the line of a finished request. There is none if the log is off, was off during the
// scan of the prompt, or no model was found.
func (l *decisionLog) record(r *Request) {
	p := l.pseudonymizer.Load()
	if p == nil || r.BlockBytes == 0 {
		return
	}
	line := decisionLine{
		Version: 1, TimeMS: float64(r.Start.UnixMicro()) / 1000, Model: r.Model, Session: p.session(r.Adapter, r.Session),
		PromptBytes: r.PromptBytes, BlockBytes: r.BlockBytes, Blocks: p.blocks(r.Blocks),
		Replica: r.Replica, Policy: r.Policy, Rank: r.Rank,
		WaitedMS: roundedMS(r.Waited), DurationMS: roundedMS(r.end.Sub(r.Start)), Status: r.Status,
	}
	if match := ratio(r.Matched, len(r.Blocks)); match != nil {
		line.Match = roundThousandth(*match)
	}
	if first := r.Response.FirstByte; !first.IsZero() {
		line.TTFTMS = roundedMS(first.Sub(r.Start))
	}
	if u := r.Tap.Usage(); u != (streaming.Usage{}) {
		line.InputTokens, line.OutputTokens = &u.PromptTokens, &u.CompletionTokens
	}
	text, err := json.Marshal(line)
	if err != nil {
		panic("BUG: a line does not encode: " + err.Error())
	}
	l.spool.Write(append(text, '\n'))
}
