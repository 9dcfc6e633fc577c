package ingress

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/llmserver"
)

func TestConnLimitDerivedFromDescriptors(t *testing.T) {
	for descriptors, want := range map[uint64]int64{0: 8, 20: 8, 64: 16, 256: 112, 1024: 448, 1 << 20: 458752, 1<<64 - 1: 1 << 39 * 7 / 8} {
		if got := deriveConnLimit(descriptors); got != want {
			t.Errorf("of %d descriptors: %d connections, want %d", descriptors, got, want)
		}
	}
}

// unsent opens a connection and sends nothing.
func (f *front) unsent() net.Conn {
	conn, _ := f.raw("")
	return conn
}

func TestConnLimitRejectsExcessConnection(t *testing.T) {
	c := configured(modelOn("m", upstream(t, ok)))
	c.HTTP.MaxConnections = 2
	f := serveConfig(t, c)
	first, second := f.unsent(), f.unsent()
	f.eventually("both connections are open", func() bool { return f.public.connCount() == 2 })

	const request = "POST /v1/chat/completions HTTP/1.1\r\nHost: berth\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
	for range 3 * maxExcessConns {
		conn, r := f.raw(request)
		got := readReply(t, r, "POST")
		got.Header.Set("X-Request-Id", "none here")
		wantError(t, got, 503, "too_many_connections", "")
		if got.Header.Get("Retry-After") == "" || !got.Close {
			t.Errorf("its header is %v", got.Header)
		}
		if rest, err := io.ReadAll(r); len(rest) > 0 || err != nil {
			t.Errorf("behind the response come %q and %v", rest, err)
		}
		conn.Close()
		if t.Failed() {
			return
		}
	}
	if r := f.do(t.Context(), f.h2, "GET", "/v1/models", nil); r.StatusCode != 503 || !strings.Contains(r.body, "too_many_connections") {
		t.Errorf("over h2c: %d %s %v", r.StatusCode, r.body, r.err)
	}
	if log := f.log.take(); strings.Count(log, "connections beyond the limit") != 1 || !strings.Contains(log, "limit=2") {
		t.Errorf("logged:\n%s", log)
	}
	conn, r := f.raw("GET /livez HTTP/1.1\r\nHost: berth\r\n\r\n") // a busy process must not be restarted for it
	if got := readReply(t, r, "GET"); got.StatusCode != 200 || !got.Close {
		t.Errorf("a health check got %d %s", got.StatusCode, got.body)
	}
	conn.Close()
	f.h2.CloseIdleConnections()
	second.Close()
	f.eventually("the connections are closed", func() bool { return f.public.connCount() == 1 && len(f.connLimit.excess) == 0 })
	if r := f.chat("m"); r.body != "ok" {
		t.Errorf("below the limit: %d %s %v", r.StatusCode, r.body, r.err)
	}
	if n := f.metric("berth_connections_refused_total"); n != 3*maxExcessConns+2 {
		t.Errorf("%v connections were refused", n)
	}
	if open, limit := f.metric("berth_connections"), f.metric("berth_connections_limit"); open != 2 || limit != 2 {
		t.Errorf("%v connections of %v", open, limit)
	}
	if _, err := io.WriteString(first, request); err != nil {
		t.Error(err)
	}
	if r := readReply(t, bufio.NewReader(first), "POST"); r.body != "ok" {
		t.Errorf("an older connection got %d %s", r.StatusCode, r.body)
	}
}

// Clients that send nothing occupy excess connections for a bounded time only.
func TestConnLimitClosesSilentExcessConnections(t *testing.T) {
	c := configured(modelOn("m", upstream(t, ok)))
	c.HTTP.MaxConnections = 1
	f := serveConfig(t, c)
	f.unsent()
	f.eventually("the connection is open", func() bool { return f.public.connCount() == 1 })
	for range maxExcessConns {
		f.unsent()
	}
	_, r := f.raw("GET /v1/models HTTP/1.1\r\nHost: berth\r\n\r\n")
	if got := readReply(t, r, "GET"); got.StatusCode != 503 {
		t.Errorf("got %d %s", got.StatusCode, got.body)
	}
}

func TestConnLimitRejectsExcessConnectionOverTLS(t *testing.T) {
	c, cert := encrypted(t, modelOn("m", upstream(t, ok)))
	c.HTTP.MaxConnections = 1
	f := serveConfig(t, c)
	f.unsent()
	f.eventually("the connection is open", func() bool { return f.public.connCount() == 1 })
	for _, h2 := range []bool{false, true} {
		client, _ := overTLS(t, cert, h2)
		if r := f.do(t.Context(), client, "GET", "/v1/models", nil); r.StatusCode != 503 || !strings.Contains(r.body, "too_many_connections") {
			t.Errorf("got %d %s %v", r.StatusCode, r.body, r.err)
		}
	}
}

// exhausted is a backend without a free descriptor.
type exhausted struct{ llmserver.Backend }

func (exhausted) Do(*http.Request, llmserver.Token) (*http.Response, llmserver.Report, error) {
	return nil, llmserver.Report{}, fmt.Errorf("%w: %w", llmserver.ErrExhausted, os.NewSyscallError("socket", syscall.EMFILE))
}

func TestExhaustionBlamesNoReplica(t *testing.T) {
	f := serve(t, modelOn("n", refusing(1)))
	f.registry.pool.Dial = func(e llmserver.Endpoint) (llmserver.Backend, error) {
		b, err := dialBackend(e)
		return exhausted{b}, err
	}
	f.mustApply(modelOn("m", refusing(2), refusing(3)))
	for range 20 {
		r := f.chat("m")
		wantError(t, r, 503, "server_exhausted", "")
		if strings.Contains(r.body, "files") || r.Header.Get("Retry-After") == "" || !r.Close {
			t.Errorf("a client reads %s and %v", r.body, r.Header)
		}
	}
	for _, replica := range f.registry.allReplicas() {
		if replica.State() != "serving" {
			t.Errorf("replica %s is %s", replica.ID(), replica.State())
		}
	}
	if log := f.log.take(); strings.Count(log, "no replica is to blame") != 1 || !strings.Contains(log, "too many open files") {
		t.Errorf("logged:\n%s", log)
	}
	if n := f.metric("berth_exhausted_total"); n < 20 {
		t.Errorf("counted %v", n)
	}
	for _, phase := range []string{phaseConnect, phaseFirstByte} {
		if n, _ := f.series(`berth_upstream_errors_total{model="m",phase="` + phase + `"}`); n != 0 {
			t.Errorf("%v errors are counted against replicas", n)
		}
	}
	if n := f.metric(`berth_releases_total{cause="walked_away",model="m"}`); n < 20 {
		t.Errorf("%v slots were given back as not used", n)
	}
}

func TestExhaustionLogIsThrottled(t *testing.T) {
	f := new(record)
	e := newThrottledLog(slog.New(slog.NewTextHandler(f, nil)), "out of it")
	for range 100 {
		e.warn("n", 1)
	}
	e.next.Store(int64(time.Since(e.start)))
	e.warn("n", 2)
	if log := f.take(); strings.Count(log, "out of it") != 2 || !strings.Contains(log, "n=2 omitted_lines=99") {
		t.Errorf("logged:\n%s", log)
	}
}
