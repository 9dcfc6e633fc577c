package ingress

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"berth/config"
	"berth/streaming"
)

// decisionLog writes a line of JSON for each request that is over and was for a model: how it was placed and what came of it,
// so that it can be replayed.
//
// No line tells what was said. Hashes of prompts and sessions are encrypted under a key that is not in the log, without
// which nobody can try what a guess would come out as; with the same key the same text has the same hash in
// every log.
//
// The zero value is off.
type decisionLog struct {
	veil atomic.Pointer[veil] // nil while it is off

	mu     sync.Mutex // guards what follows
	random *veil      // for want of a configured key; made once
	spool  *spool     // nil until it is first on
}

// open opens what a configuration names, to append to, and makes what hides its hashes; nil for no log.
func (l *decisionLog) open(c config.DecisionLog) (io.WriteCloser, *veil, error) {
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
		return out, newVeil([]byte(key)), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.random == nil {
		l.random = newVeil([]byte(rand.Text()))
	}
	return out, l.random, nil
}

// use has lines written to out from now on; nil turns the log off.
func (l *decisionLog) use(out io.WriteCloser, v *veil, m *metrics, log *slog.Logger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spool == nil && out != nil {
		l.spool = newSpool("the decision log", func(lines int) { m.unlogged.Add(float64(lines)) }, log)
	}
	l.veil.Store(v)
	if l.spool != nil {
		l.spool.use(out)
	}
}

// close writes what is left; no request may be under way any more.
func (l *decisionLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spool != nil {
		l.spool.close()
	}
}

// decisionLine is a line of the log. Its readers are in routers/replay.
type decisionLine struct {
	Version      int     `json:"v"`
	TimeMS       float64 `json:"time_ms"` // of the request's head, in Unix time
	Model        string  `json:"model"`
	Session      string  `json:"session,omitempty"`
	PromptBytes  int     `json:"prompt_bytes"`
	BlockBytes   int     `json:"block_bytes"`
	Blocks       hashes  `json:"blocks"`
	Replica      string  `json:"replica"` // the last one chosen; empty if none was
	Policy       string  `json:"policy"`
	Rank         int     `json:"rank"`
	Match        float64 `json:"match"`
	WaitedMS     float64 `json:"waited_ms"`
	TTFTMS       float64 `json:"ttft_ms"` // 0: no answer began
	DurationMS   float64 `json:"duration_ms"`
	InputTokens  *int64  `json:"input_tokens,omitempty"`
	OutputTokens *int64  `json:"output_tokens,omitempty"`
	Status       int     `json:"status"`
}

// record writes the line of a request that is over.
func (l *decisionLog) record(x *proxyRequest) {
	v, p := l.veil.Load(), &x.payload
	if v == nil || x.blockBytes == 0 { // it is off, or was when the request came, or no model was found
		return
	}
	line := decisionLine{
		Version: 1, TimeMS: float64(x.began.UnixMicro()) / 1000, Model: p.Model, Session: v.session(p.Adapter, p.SessionID),
		PromptBytes: x.promptBytes, BlockBytes: x.blockBytes, Blocks: v.blocks(x.blocks),
		Replica: x.replica, Policy: x.model.config.Router.Class, Rank: x.rank,
		WaitedMS: inMS(p.Waited), DurationMS: inMS(time.Since(x.began)), Status: x.visit.answered(),
	}
	if match := ratio(x.matched, len(x.blocks)); match != nil {
		line.Match = thousandth(*match)
	}
	if first := x.result.FirstByte; !first.IsZero() {
		line.TTFTMS = inMS(first.Sub(x.began))
	}
	if u := x.tap.Usage(); u != (streaming.Usage{}) {
		line.InputTokens, line.OutputTokens = &u.PromptTokens, &u.CompletionTokens
	}
	text, err := json.Marshal(line)
	if err != nil {
		panic("BUG: a line does not encode: " + err.Error())
	}
	l.spool.Write(append(text, '\n'))
}

// inMS is a duration in milliseconds, to the microsecond.
func inMS(d time.Duration) float64 { return thousandth(milliseconds(d)) }

func thousandth(f float64) float64 { return math.Round(f*1000) / 1000 }

// veil hides hashes under a key.
type veil struct {
	cipher cipher.Block
	secret [sha256.Size]byte
}

func newVeil(key []byte) *veil {
	v := &veil{secret: sha256.Sum256(key)}
	var err error
	if v.cipher, err = aes.NewCipher(v.secret[:]); err != nil {
		panic("BUG: " + err.Error())
	}
	return v
}

// blocks are the first halves of the hashes' cipher texts: whoever does not have the key cannot tell them from chance.
func (v *veil) blocks(plain []uint64) hashes {
	hidden, block := make(hashes, len(plain)), make([]byte, aes.BlockSize)
	for i, hash := range plain {
		binary.BigEndian.PutUint64(block, hash)
		clear(block[8:])
		v.cipher.Encrypt(block, block)
		hidden[i] = binary.BigEndian.Uint64(block)
	}
	return hidden
}

// session is a keyed hash of what the client calls its conversation, which with an adapter is another one; empty if it
// does not say.
func (v *veil) session(adapter, id string) string {
	if id == "" {
		return ""
	}
	mac := hmac.New(sha256.New, v.secret[:])
	if adapter != "" {
		io.WriteString(mac, adapter+"\x00")
	}
	io.WriteString(mac, id)
	return hex.EncodeToString(mac.Sum(nil)[:8])
}

// hashes are written as 16 hexadecimal digits each.
type hashes []uint64

func (h hashes) MarshalJSON() ([]byte, error) {
	text, bytes := append(make([]byte, 0, 2+19*len(h)), '['), make([]byte, 8)
	for i, hash := range h {
		if i > 0 {
			text = append(text, ',')
		}
		binary.BigEndian.PutUint64(bytes, hash)
		text = append(hex.AppendEncode(append(text, '"'), bytes), '"')
	}
	return append(text, ']'), nil
}
