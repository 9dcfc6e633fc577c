package telemetry

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"berth/config"
	"berth/streaming"
)

func TestAccessLogLeavesStandardOutputOpen(t *testing.T) {
	out, err := openAccessLog(config.ToStdout)
	if err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stdout.Stat(); err != nil {
		t.Error(err)
	}
}

func TestAccessLogHashesTextsOfClientsUnlessShortAndPlain(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "",
		"conversation-7":         "conversation-7",
		strings.Repeat("x", 128): strings.Repeat("x", 128),
		strings.Repeat("x", 129): "sha256:0ec9eb33e74510bc",
		"a\nb":                   "sha256:7e18f737311b2dc3",
		"zoë":                    "sha256:2752b88686847fa5",
	} {
		if got := printable(text); got != want {
			t.Errorf("%q is logged as %q; want %q", text, got, want)
		}
	}
}

// BenchmarkAccessLog measures the cost of a line for its request.
func BenchmarkAccessLog(b *testing.B) {
	var l accessLog
	out, err := openAccessLog(os.DevNull)
	if err != nil {
		b.Fatal(err)
	}
	l.setOutput(out, newMetrics(), slog.New(slog.DiscardHandler))
	defer l.close()
	start := time.Now()
	r := &Request{
		ID: "b5b9ae0c-3d31-4b5f-9a83-5d2cbe2f5d8c", RemoteAddr: "192.0.2.1:1234", Method: "POST", Path: "/v1/chat/completions",
		Start: start, Proxied: true, BodyRead: start, Model: "m", Policy: "RoundRobinRouter", Attempts: 1, Replica: "a", Rank: 1,
		Dispatched: start, Response: streaming.Result{FirstByte: start}, Status: 200, end: start.Add(time.Second),
	}
	b.ReportAllocs()
	for b.Loop() {
		l.record(r)
	}
}
