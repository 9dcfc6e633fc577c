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
	"log/slog"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth/config"
	"berth/routers"
	"berth/streaming"
)

const (
	// queuedLines and queuedBlocks bound what waits to be written.
	queuedLines  = 4096
	queuedBlocks = 1 << 20
	// enoughToWrite is how many bytes are written at once while more come in.
	enoughToWrite = 64 << 10
)

// decisionLog writes a JSON line for each request that is over. Who hands one in never waits: while the queue is full,
// lines are dropped and counted. One goroutine writes.
//
// No line tells what was said. Hashes of prompts and sessions are encrypted under a key that is not in the log, without
// which nobody can try what a guess would come out as; with the same key the same text has the same hash in
// every log.
type decisionLog struct {
	hide    cipher.Block
	secret  []byte
	queue   chan *logLine
	blocks  atomic.Int64 // in the queue
	dropped prometheus.Counter
	log     *slog.Logger
	writing sync.WaitGroup

	// The writer's own.
	file    *os.File
	lines   []byte // to be written
	pending int    // how many they are
	failing bool   // the last write did
}

// logLine is a line of the log.
type logLine struct {
	Version      int     `json:"v"`
	TimeMS       float64 `json:"time_ms"` // of the request's head, in Unix time
	Model        string  `json:"model"`
	Session      string  `json:"session,omitempty"` // as the client named it until it is written
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

// hashes are written as 16 hexadecimal digits each.
type hashes []uint64

func (h hashes) MarshalJSON() ([]byte, error) {
	text := append(make([]byte, 0, 2+19*len(h)), '[')
	for i, hash := range h {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(text, '"')
		text = hex.AppendEncode(text, binary.BigEndian.AppendUint64(nil, hash))
		text = append(text, '"')
	}
	return append(text, ']'), nil
}

// openDecisionLog begins to append to the file. It must be closed.
func openDecisionLog(c config.DecisionLog, dropped prometheus.Counter, log *slog.Logger) (*decisionLog, error) {
	secret := make([]byte, sha256.Size)
	rand.Read(secret)
	if c.KeyEnv != "" {
		key := os.Getenv(c.KeyEnv)
		if key == "" {
			return nil, fmt.Errorf("the environment variable %s, which should hold the key of the decision log, is not set", c.KeyEnv)
		}
		sum := sha256.Sum256([]byte(key))
		secret = sum[:]
	}
	hide, err := aes.NewCipher(secret)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	file, err := os.OpenFile(c.Path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return nil, fmt.Errorf("the decision log cannot be written: %w", err)
	}
	l := &decisionLog{
		hide: hide, secret: secret, queue: make(chan *logLine, queuedLines), dropped: dropped, log: log,
		file: file,
	}
	l.writing.Go(l.write)
	return l, nil
}

// hand queues a line, which is the log's from then on.
func (l *decisionLog) hand(r *logLine) {
	n := int64(len(r.Blocks))
	if l.blocks.Add(n) <= queuedBlocks+n { // one that is too long alone still goes in
		select {
		case l.queue <- r:
			return
		default:
		}
	}
	l.blocks.Add(-n)
	l.dropped.Inc()
}

// write writes until the queue is closed, whenever that is empty or there is enough.
func (l *decisionLog) write() {
	for r := range l.queue {
		l.blocks.Add(-int64(len(r.Blocks)))
		l.add(r)
		if len(l.queue) == 0 || len(l.lines) >= enoughToWrite {
			l.flush()
		}
	}
}

// add makes one line ready.
func (l *decisionLog) add(r *logLine) {
	if r.Session != "" {
		mac := hmac.New(sha256.New, l.secret)
		mac.Write([]byte(r.Session))
		r.Session = hex.EncodeToString(mac.Sum(nil)[:8])
	}
	for i, block := range r.Blocks {
		r.Blocks[i] = l.hidden(block)
	}
	text, err := json.Marshal(r)
	if err != nil {
		panic("BUG: a line does not encode: " + err.Error())
	}
	l.lines = append(append(l.lines, text...), '\n')
	l.pending++
}

// hidden is the first half of a hash's cipher text: whoever does not have the key cannot tell it from chance.
func (l *decisionLog) hidden(hash uint64) uint64 {
	var block [aes.BlockSize]byte
	binary.BigEndian.PutUint64(block[:], hash)
	l.hide.Encrypt(block[:], block[:])
	return binary.BigEndian.Uint64(block[:])
}

// flush writes what there is. Where that fails, it tells so once, and goes on trying with what comes next.
func (l *decisionLog) flush() {
	n, err := l.file.Write(l.lines)
	if err != nil {
		l.dropped.Add(float64(l.pending))
		if !l.failing {
			l.log.Error("the decision log cannot be written", "error", err)
		}
	}
	torn := err != nil && n > 0 && l.lines[n-1] != '\n'
	l.lines, l.pending, l.failing = l.lines[:0], 0, err != nil
	if torn {
		l.lines = append(l.lines, '\n')
	}
}

// close writes what is queued. Nothing may be handed in any more.
func (l *decisionLog) close() {
	close(l.queue)
	l.writing.Wait()
	if err := l.file.Close(); err != nil {
		l.log.Error("the decision log may have lost its end", "error", err)
	}
}

// open begins the line of a request whose prompt is of so many bytes.
func (x *exchange) open(blocks []uint64, blockBytes, promptBytes int) {
	p := &x.payload
	x.line = &logLine{
		Version: 1, TimeMS: float64(x.began.UnixMicro()) / 1000, Model: p.Model, Session: p.SessionID,
		PromptBytes: promptBytes, BlockBytes: blockBytes, Blocks: slices.Clone(blocks), Policy: x.model.config.Router.Class,
	}
	if p.SessionID != "" && p.Adapter != "" {
		x.line.Session = p.Adapter + "\x00" + p.SessionID // another conversation than with the model itself
	}
}

// placed notes where the request goes, the last place if there are several.
func (r *logLine) placed(sel *routers.Selection) {
	if r == nil {
		return
	}
	r.Replica, r.Rank, r.Match = sel.Replica().ID(), sel.Rank(), 0
	if len(r.Blocks) > 0 {
		r.Match = thousandth(float64(sel.Matched()) / float64(len(r.Blocks)))
	}
}

// answered notes when the answer began.
func (r *logLine) answered(began time.Time, first time.Time) {
	if r != nil && !first.IsZero() {
		r.TTFTMS = inMS(first.Sub(began))
	}
}

// handIn hands in the line of a request that is over.
func (x *exchange) handIn() {
	r := x.line
	if r == nil {
		return
	}
	r.Status = status(x.c)
	r.WaitedMS, r.DurationMS = inMS(x.payload.Waited), inMS(time.Since(x.began))
	if u := x.tap.Usage(); u != (streaming.Usage{}) {
		r.InputTokens, r.OutputTokens = &u.PromptTokens, &u.CompletionTokens
	}
	x.decisionLog.hand(r)
}

// inMS is a duration in milliseconds, to the microsecond.
func inMS(d time.Duration) float64 { return thousandth(milliseconds(d)) }

func thousandth(f float64) float64 { return math.Round(f*1000) / 1000 }
