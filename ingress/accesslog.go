package ingress

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"berth/config"
	"berth/streaming"
)

// accessLog writes a line of JSON for each request of a client that is over. It tells who asked for what, where it went,
// how long each phase took and how it ended; nothing of prompts or answers.
//
// The zero value is off.
type accessLog struct {
	on    atomic.Bool
	lines *slog.Logger // set before it is first on

	mu    sync.Mutex // guards spool
	spool *spool     // nil until it is first on
}

// openAccessLog opens what a configuration names, to append to; nil for no log.
func openAccessLog(name string) (io.WriteCloser, error) {
	switch name {
	case "":
		return nil, nil
	case config.ToStdout:
		return struct {
			io.Writer
			io.Closer
		}{os.Stdout, io.NopCloser(nil)}, nil
	default:
		return os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	}
}

// use has lines written to out; nil turns the log off.
func (l *accessLog) use(out io.WriteCloser, m *metrics, log *slog.Logger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spool == nil && out != nil {
		l.spool = newSpool("the access log", func(lines int) { m.droppedLines.Add(float64(lines)) }, log)
		l.lines = slog.New(slog.NewJSONHandler(l.spool, nil))
	}
	l.on.Store(out != nil)
	if l.spool != nil {
		l.spool.use(out)
	}
}

// close writes what is left; no request may be under way any more.
func (l *accessLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spool != nil {
		l.spool.close()
	}
}

// trail is what an exchange leaves behind for those who look at it later.
type trail struct {
	size       int       // of the request's body
	uploaded   time.Time // when it was in
	attempts   int
	replica    string    // the last one that was chosen
	rank       int       // of its tier, from 1
	matched    int       // blocks that it was held to know
	dispatched time.Time // to it
	result     streaming.Result

	// The prompt, if its policy or the decision log want it; else there are no blockBytes.
	blocks                  []uint64
	blockBytes, promptBytes int
}

// record writes the line of a request that is over.
func (l *accessLog) record(c *gin.Context, took time.Duration) {
	r, v := c.Request, stateOf(c)
	status := v.answered()
	client, _, _ := net.SplitHostPort(r.RemoteAddr)
	line := append(make([]slog.Attr, 0, 40),
		slog.String("request_id", requestID(c)),
		slog.String("client", client),
		slog.String("method", r.Method),
		slog.String("path", printable(r.URL.Path)),
		slog.Int("status", status),
		slog.String("outcome", v.outcome(status)),
	)
	line = appendText(line, "code", v.code)
	line = appendText(line, "key", keyName(c))
	if v.exchange.Server != nil {
		line = v.exchange.describe(line)
	}
	line = append(line, elapsed("duration_ms", took))
	l.lines.LogAttrs(context.Background(), slog.LevelInfo, "request", line...)
}

// describe appends what is known of an exchange, however far it came.
func (x *proxyRequest) describe(line []slog.Attr) []slog.Attr {
	if x.model != nil {
		line = append(line, slog.String("model", x.model.config.ID))
	}
	line = appendText(line, "adapter", printable(x.payload.Adapter))
	line = appendText(line, "session", printable(x.payload.SessionID))
	if x.attempts > 0 {
		line = append(line, slog.String("replica", x.replica), slog.String("policy", x.model.config.Router.Class), slog.Int("rank", x.rank),
			slog.Int("attempts", x.attempts))
	}
	line = append(line, slog.Bool("stream", x.stream))
	if !x.uploaded.IsZero() {
		line = append(line, elapsed("body_ms", x.uploaded.Sub(x.began)), elapsed("wait_ms", x.payload.Waited))
	}
	if first := x.result.FirstByte; !first.IsZero() {
		line = append(line, elapsed("first_byte_ms", first.Sub(x.dispatched)), elapsed("stream_ms", time.Since(first)))
	}
	if x.tap.Failed {
		line = append(line, slog.Bool("error_event", true))
	}
	u := x.tap.Usage()
	return append(line, slog.Int("bytes_in", x.size), slog.Int64("bytes_out", x.result.Bytes), slog.Int("events", x.tap.Events),
		slog.Int64("prompt_tokens", u.PromptTokens), slog.Int64("completion_tokens", u.CompletionTokens),
		slog.Int64("cached_tokens", u.CachedTokens))
}

// outcome names how a request ended: finished is an answer that was passed on whole, be it an engine's error; refused and
// failed are answers of berth's own.
func (v *requestState) outcome(status int) string {
	switch {
	case v.code == "":
		return "finished"
	case v.code == codeGone:
		return "client_gone"
	case v.code == internalError:
		return "failed"
	case v.cut:
		return "upstream_broken"
	case status == http.StatusBadGateway || status == http.StatusGatewayTimeout:
		return "failed"
	default:
		return "refused"
	}
}

func appendText(line []slog.Attr, key, value string) []slog.Attr {
	if value == "" {
		return line
	}
	return append(line, slog.String(key, value))
}

func elapsed(key string, d time.Duration) slog.Attr { return slog.Float64(key, inMS(d)) }

// longestLogged is the length up to which a text of a client's is logged as it was sent.
const longestLogged = 128

// printable is a text that a client sent, fit for a log: as it is if it is short visible ASCII, else its hash.
func printable(text string) string {
	if text == "" || len(text) <= longestLogged && saneID(text) {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:8])
}
