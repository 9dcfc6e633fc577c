package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"berth/llmserver/simulated"
)

// waitAborted waits until the engine has aborted the given number of requests and has none in
// flight.
func waitAborted(t *testing.T, s *simulated.Server, aborted int64) {
	t.Helper()
	eventually(t, "the engine has no active request", func() bool {
		now := s.Engine().Stats()
		return now.Aborted == aborted && now.InFlight == 0
	})
}

// waitInFlight waits until the engine has n requests in flight.
func waitInFlight(t *testing.T, s *simulated.Server, n int64) {
	t.Helper()
	eventually(t, "requests have reached the engine", func() bool { return s.Engine().Stats().InFlight == n })
}

// waitAbortCounted waits until berth has counted one abort in the given phase.
func (b *berth) waitAbortCounted(t *testing.T, phase string) {
	t.Helper()
	eventually(t, "one abort is counted in phase "+phase, func() bool {
		return b.sumMetric(t, "berth_aborts_total", `phase="`+phase+`"`) == 1
	})
}

func TestDisconnectBeforeTheFirstByteStopsTheEngine(t *testing.T) {
	t.Parallel()
	forBothProtocols(t, func(t *testing.T, client *http.Client) {
		engine := startEngines(t, 1, simulated.Config{})[0]
		engine.Engine().SetFaults(simulated.Faults{Hang: true})
		b := serve(t, demoConfig("", engine))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		result := startChat(ctx, client, b.url, endlessChatBody("demo"))
		waitInFlight(t, engine, 1)
		cancel()
		waitAborted(t, engine, 1)
		b.waitAbortCounted(t, "first_byte")
		if got := waitResponse(t, result); got.err == nil {
			t.Errorf("got %v after the disconnect", got)
		}
	})
}

func TestDisconnectMidStreamStopsTheEngine(t *testing.T) {
	t.Parallel()
	forBothProtocols(t, func(t *testing.T, client *http.Client) {
		engine := startEngines(t, 1, simulated.Config{})[0]
		b := serve(t, demoConfig("", engine))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		openStream(t, ctx, client, b.url, endlessChatBody("demo"))
		cancel()
		waitAborted(t, engine, 1)
		b.waitAbortCounted(t, "streaming")
	})
}

func TestDisconnectInTheQueueNeverReachesTheEngine(t *testing.T) {
	t.Parallel()
	forBothProtocols(t, func(t *testing.T, client *http.Client) {
		engine := startEngines(t, 1, simulated.Config{})[0]
		b := serve(t, demoConfig("max_ongoing_requests: 1", engine))
		first, end := context.WithCancel(t.Context())
		defer end()
		openStream(t, first, client, b.url, endlessChatBody("demo"))
		second, cancel := context.WithCancel(t.Context())
		defer cancel()
		result := startChat(second, client, b.url, chatBody("demo", "Hello", 1, true))
		eventually(t, "the second request is queued", func() bool { return b.sumMetric(t, "berth_queue_length") == 1 })
		cancel()
		eventually(t, "the queue is empty", func() bool { return b.sumMetric(t, "berth_queue_length") == 0 })
		b.waitAbortCounted(t, "waiting")
		waitResponse(t, result)
		end()
		waitAborted(t, engine, 1)
		if now := engine.Engine().Stats(); now.Requests != 1 {
			t.Errorf("the engine received %d requests, want 1", now.Requests)
		}
	})
}

func TestDisconnectIncludesHalfClosedConnections(t *testing.T) {
	t.Parallel()
	for _, phase := range []string{"first_byte", "streaming"} {
		t.Run(phase, func(t *testing.T) {
			engine := startEngines(t, 1, simulated.Config{})[0]
			engine.Engine().SetFaults(simulated.Faults{Hang: phase == "first_byte"})
			b := serve(t, demoConfig("", engine))
			conn := dialTCP(t, b.url)
			body := endlessChatBody("demo")
			fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: berth\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			var prefix [64]byte
			if phase == "streaming" {
				if _, err := io.ReadFull(conn, prefix[:]); err != nil {
					t.Fatal(err)
				}
			}
			waitInFlight(t, engine, 1)
			conn.CloseWrite()
			waitAborted(t, engine, 1)
			b.waitAbortCounted(t, phase)
			rest, _ := io.ReadAll(conn) // a reset is a valid end too
			if phase == "first_byte" && len(rest) > 0 {
				t.Errorf("a client that half-closed the connection got %q", rest)
			}
			if bytes.HasSuffix(rest, []byte("\r\n0\r\n\r\n")) {
				t.Error("the stream looks complete")
			}
		})
	}
}

// dialTCP opens a TCP connection to berth with a deadline.
func dialTCP(t *testing.T, url string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(waitTimeout))
	return conn.(*net.TCPConn)
}
