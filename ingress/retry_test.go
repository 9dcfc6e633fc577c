package ingress

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// breaking returns the URL of a replica that reads requests and closes the connection, and the
// number of requests that it got.
func breaking(t *testing.T) (string, *atomic.Int32) {
	calls := new(atomic.Int32)
	return upstream(t, func(_ http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		io.Copy(io.Discard, r.Body)
		panic(http.ErrAbortHandler)
	}), calls
}

// ongoing returns the number of slots in use on all replicas together.
func (f *front) ongoing() (n int) {
	for _, r := range f.registry.allReplicas() {
		n += r.Load()
	}
	return n
}

func TestRetryAfterARefusedConnection(t *testing.T) {
	var f *front
	calls := 0
	f = serve(t, modelOn("m", refusing(1), refusing(2), upstream(t, func(w http.ResponseWriter, r *http.Request) {
		calls++
		if n := f.ongoing(); n != 1 {
			t.Errorf("%d slots are in use in the third attempt", n)
		}
		io.Copy(w, r.Body)
	})))
	f.turn("m")
	for range 2 {
		if r := f.chat("m"); r.body != chat("m") {
			t.Errorf("got %d %s", r.StatusCode, r.body)
		}
	}
	if calls != 2 {
		t.Errorf("the replica got %d requests", calls)
	}
	if n := f.metric(`berth_retries_total{model="m",reason="no_connection"}`); n != 2 {
		t.Errorf("counted %v retries; want 2, as replicas that are down are not chosen", n)
	}
	if n := f.metric(`berth_upstream_errors_total{model="m",phase="connect"}`); n != 2 {
		t.Errorf("counted %v errors", n)
	}
}

func TestRetryIsLimitedByMaxAttempts(t *testing.T) {
	m := modelOn("m", refusing(1), refusing(2), refusing(3))
	m.MaxAttempts = 2
	f := serve(t, m)
	wantError(t, f.chat("m"), 503, "no_replica_available", "")
	if n := f.metric(`berth_retries_total{model="m",reason="no_connection"}`); n != 1 {
		t.Errorf("counted %v retries", n)
	}
}

func TestRetryAfterABrokenConnection(t *testing.T) {
	broken, calls := breaking(t)
	f := serve(t, modelOn("m", broken, upstream(t, ok)))
	for range 4 { // a round robin: some begin with the good one
		if r := f.chat("m"); r.body != "ok" {
			t.Errorf("got %d %s", r.StatusCode, r.body)
		}
	}
	if n := f.metric(`berth_retries_total{model="m",reason="broken"}`); n == 0 || n != float64(calls.Load()) {
		t.Errorf("counted %v retries after %d breaks", n, calls.Load())
	}
}

func TestRetryIsMadeOnceAfterABrokenConnection(t *testing.T) {
	var f *front
	var calls atomic.Int32
	breaks := func(_ http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		if n := f.ongoing(); n != 1 {
			t.Errorf("%d slots are in use", n)
		}
		panic(http.ErrAbortHandler)
	}
	f = serve(t, modelOn("m", upstream(t, breaks), upstream(t, breaks), upstream(t, breaks)))
	wantError(t, f.chat("m"), 502, "upstream_broken", "")
	if calls.Load() != 2 {
		t.Errorf("the request was sent %d times", calls.Load())
	}
	if n := f.metric(`berth_upstream_errors_total{model="m",phase="first_byte"}`); n != 2 {
		t.Errorf("counted %v errors", n)
	}
}

func TestRetryWithoutAnotherReplicaReportsTheBrokenConnection(t *testing.T) {
	broken, calls := breaking(t)
	f := serve(t, modelOn("m", broken, refusing(1)))
	wantError(t, f.chat("m"), 502, "upstream_broken", "")
	wantError(t, f.chat("m"), 502, "upstream_broken", "")
	if calls.Load() != 2 {
		t.Errorf("the request was the request was sent %d times; want once each", calls.Load())
	}
}

func TestRetryOnTheSameReplicaAfterAStaleConnection(t *testing.T) {
	var calls atomic.Int32
	f := serve(t, modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if calls.Add(1) == 2 {
			panic(http.ErrAbortHandler)
		}
		ok(w, r)
	})))
	for range 2 {
		if r := f.chat("m"); r.body != "ok" {
			t.Errorf("got %d %s", r.StatusCode, r.body)
		}
		f.idle()
	}
	if calls.Load() != 3 {
		t.Errorf("the replica got %d requests", calls.Load())
	}
}

// Nothing has reached the client before the first byte of a body, so a break until then is retried
// once.
func TestRetryIsMadeOnceBeforeTheFirstByteOfABody(t *testing.T) {
	for name, response := range map[string]struct {
		handler http.HandlerFunc
		status  int
		code    string
	}{
		"something else":      {speak("SSH-2.0-OpenSSH\r\n\r\n"), 502, "upstream_invalid"},
		"the header only":     {speak("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"), 502, "upstream_broken"},
		"half of a known one": {speak("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"), 502, "upstream_broken"},
		"no chunk":            {speak("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), 502, "upstream_broken"},
		"another protocol":    {speak("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"), 502, "upstream_invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int32
			counted := func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				io.Copy(io.Discard, r.Body)
				response.handler(w, r)
			}
			f := serve(t, modelOn("m", upstream(t, counted), upstream(t, counted), upstream(t, counted)))
			r := f.chat("m")
			if response.code != "" {
				wantError(t, r, response.status, response.code, "")
			} else if r.StatusCode != response.status {
				t.Errorf("got %d %s %v", r.StatusCode, r.body, r.err)
			}
			if calls.Load() != 2 {
				t.Errorf("the request was sent %d times", calls.Load())
			}
		})
	}
}

// speak writes these bytes in place of a response and closes the connection.
func speak(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		io.WriteString(conn, text)
	}
}

func TestRetryIsNeverMadeOfATruncatedResponse(t *testing.T) {
	const event = "data: {\"choices\":[]}\n\n"
	for name, row := range map[string]struct{ contentType, sent, got string }{
		"events":          {"text/event-stream", event, event + `data: {"error":{`},
		"half an event":   {"text/event-stream", event + "data: {", event + `data: {"error":{`},
		"anything else":   {"text/plain", "some text", "some text"},
		"an empty stream": {"text/event-stream", "\n\n", "\n\n" + `data: {"error":{`},
	} {
		var calls atomic.Int32
		dies := func(w http.ResponseWriter, r *http.Request) {
			calls.Add(1)
			w.Header().Set("Content-Type", row.contentType)
			io.WriteString(w, row.sent)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		t.Run(name, func(t *testing.T) {
			f := serve(t, modelOn("m", upstream(t, dies), upstream(t, dies)))
			for _, client := range []*http.Client{f.h1, f.h2} {
				calls.Store(0)
				r := f.do(t.Context(), client, "POST", "/v1/completions", strings.NewReader(chat("m")))
				if r.err == nil || r.StatusCode != 200 || !strings.HasPrefix(r.body, row.got) || strings.Contains(r.body, "[DONE]") {
					t.Errorf("the client read %q and then %v", r.body, r.err)
				}
				if events := strings.Contains(row.got, "error"); events && !strings.Contains(r.body, `"code":"upstream_broken"`) {
					t.Errorf("the last event is not an error: %q", r.body)
				}
				if calls.Load() != 1 {
					t.Errorf("the request was sent %d times", calls.Load())
				}
			}
			f.idle()
			if n := f.metric(`berth_upstream_errors_total{model="m",phase="streaming"}`); n != 2 {
				t.Errorf("counted %v errors", n)
			}
			if _, ok := f.series(`berth_aborts_total{model="m",phase="streaming"}`); ok {
				t.Error("an upstream error counts as a client disconnect")
			}
			if held := f.budget.Held(); held != 0 {
				t.Errorf("%d bytes of the body are still held", held)
			}
		})
	}
}

func TestRetryIsNotMadeAfterADisconnect(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	left, calls := make(chan struct{}), new(atomic.Int32)
	breaks := func(_ http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		io.Copy(io.Discard, r.Body)
		leave()
		<-r.Context().Done() // berth has seen the disconnect
		close(left)
		panic(http.ErrAbortHandler)
	}
	f := serve(t, modelOn("m", upstream(t, breaks), upstream(t, breaks)))
	f.do(ctx, f.h1, "POST", "/v1/completions", strings.NewReader(chat("m")))
	receive(t, left)
	f.idle()
	if calls.Load() != 1 {
		t.Errorf("the request was sent %d times", calls.Load())
	}
	if _, ok := f.series(`berth_retries_total{model="m",reason="broken"}`); ok {
		t.Error("a retry was counted")
	}
	if n, _ := f.series(`berth_upstream_errors_total{model="m",phase="first_byte"}`); n != 0 {
		t.Error("an error of the replica was counted")
	}
}

// The duration of a failed attempt is the replica's time, not overhead.
func TestMetricsOverheadExcludesFailedAttempts(t *testing.T) {
	slow := func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		select {
		case <-time.After(300 * time.Millisecond):
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	}
	f := serve(t, modelOn("m", upstream(t, slow), upstream(t, slow)))
	wantError(t, f.chat("m"), 502, "upstream_broken", "")
	if n := f.metric(`berth_overhead_seconds_count{model="m"}`); n != 2 {
		t.Errorf("%v overheads were observed; want one per attempt", n)
	}
	if sum := f.metric(`berth_overhead_seconds_sum{model="m"}`); sum <= 0 || sum >= .3 {
		t.Errorf("the overhead is %v s", sum)
	}
}

func TestProxyUsesAReplicaAfterItsProbeRecovered(t *testing.T) {
	m := modelOn("m", refusing(1))
	m.HealthCheckPeriod, m.HealthCheckTimeout = 5*time.Millisecond, 5*time.Second
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	m.Replicas[0].URL = "http://" + address
	f := serve(t, m)
	wantError(t, f.chat("m"), 503, "no_replica_available", "")
	if listener, err = net.Listen("tcp", address); err != nil {
		t.Skipf("the port is taken: %v", err)
	}
	back := &http.Server{Handler: http.HandlerFunc(ok)}
	defer back.Close()
	go back.Serve(listener)
	f.eventually("the replica is available", f.registry.allReplicas()[0].Available)
	if r := f.chat("m"); r.body != "ok" {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
	f.eventually("the gauge is 1", func() bool { return f.metric(`berth_replica_up{model="m",replica="a"}`) == 1 })
}
