package telemetry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"berth/config"
)

// accessLog writes one line of JSON per finished client request: the request, its replica, the
// duration of each phase and the outcome. Prompts and responses are never logged.
//
// The zero value writes nothing.
type accessLog struct {
	on    atomic.Bool
	lines *slog.Logger // set before on is first true, and never again

	mu    sync.Mutex // guards spool
	spool *spool     // nil until the log is first on
}

// openAccessLog opens the named file for appending. It returns nil, for no log, if the name is
// empty.
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

// setOutput directs further lines to out and closes the previous output; nil turns the log off.
func (l *accessLog) setOutput(out io.WriteCloser, m *metrics, log *slog.Logger) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spool == nil && out != nil {
		l.spool = newSpool("the access log", func(lines int) { m.accessLogDropped.Add(float64(lines)) }, log)
		l.lines = slog.New(slog.NewJSONHandler(l.spool, nil))
	}
	l.on.Store(out != nil)
	if l.spool != nil {
		l.spool.setOutput(out)
	}
}

// close writes the remaining lines. No request may be in progress any more.
func (l *accessLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spool != nil {
		l.spool.close()
	}
}

// record writes the line of a finished request, if the log is on.
func (l *accessLog) record(r *Request) {
	if !l.on.Load() {
		return
	}
	client, _, _ := net.SplitHostPort(r.RemoteAddr)
	line := append(make([]slog.Attr, 0, 40),
		slog.String("request_id", r.ID),
		slog.String("client", client),
		slog.String("method", r.Method),
		slog.String("path", printable(r.Path)),
		slog.Int("status", r.Status),
		slog.String("outcome", r.Outcome()),
	)
	line = appendText(line, "code", r.ErrorCode)
	line = appendText(line, "key", r.Key)
	if r.Proxied {
		line = r.appendProxied(line)
	}
	line = append(line, elapsed("duration_ms", r.end.Sub(r.Start)))
	l.lines.LogAttrs(context.Background(), slog.LevelInfo, "request", line...)
}

// appendProxied appends the fields of a request for a replica, however far it came.
func (r *Request) appendProxied(line []slog.Attr) []slog.Attr {
	line = appendText(line, "model", r.Model)
	line = appendText(line, "adapter", printable(r.Adapter))
	line = appendText(line, "session", printable(r.Session))
	if r.Attempts > 0 {
		line = append(line, slog.String("replica", r.Replica), slog.String("policy", r.Policy), slog.Int("rank", r.Rank),
			slog.Int("attempts", r.Attempts))
	}
	line = append(line, slog.Bool("stream", r.Stream))
	if !r.BodyRead.IsZero() {
		line = append(line, elapsed("body_ms", r.BodyRead.Sub(r.Start)), elapsed("wait_ms", r.Waited))
	}
	if first := r.Response.FirstByte; !first.IsZero() {
		line = append(line, elapsed("first_byte_ms", first.Sub(r.Dispatched)), elapsed("stream_ms", r.end.Sub(first)))
	}
	if r.Tap.Failed {
		line = append(line, slog.Bool("error_event", true))
	}
	u := r.Tap.Usage()
	return append(line, slog.Int("bytes_in", r.BodyBytes), slog.Int64("bytes_out", r.Response.Bytes), slog.Int("events", r.Tap.Events),
		slog.Int64("prompt_tokens", u.PromptTokens), slog.Int64("completion_tokens", u.CompletionTokens),
		slog.Int64("cached_tokens", u.CachedTokens))
}

func appendText(line []slog.Attr, key, value string) []slog.Attr {
	if value == "" {
		return line
	}
	return append(line, slog.String(key, value))
}

func elapsed(key string, d time.Duration) slog.Attr { return slog.Float64(key, roundedMS(d)) }

// milliseconds returns d in milliseconds; roundedMS rounds to the microsecond.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
func roundedMS(d time.Duration) float64    { return roundThousandth(milliseconds(d)) }

func roundThousandth(f float64) float64 { return math.Round(f*1000) / 1000 }

// maxLoggedText is the length up to which a client's text is logged unchanged.
const maxLoggedText = 128

// LoggableID reports whether a client's ID can be logged unchanged: 1 to 128 visible ASCII
// characters.
func LoggableID(id string) bool {
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return len(id) > 0 && len(id) <= maxLoggedText
}

// printable returns a client's text in a form safe to log: short visible ASCII unchanged, other
// text as a hash, so equal texts can still be matched.
func printable(text string) string {
	if text == "" || LoggableID(text) {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:8])
}
