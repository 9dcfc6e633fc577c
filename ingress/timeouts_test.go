package ingress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth/config"
	"berth/streaming"
)

// short is a timeout that tests can wait for. Nothing in a test that must not time out may take as
// long.
const short = 40 * time.Millisecond

// streamed returns the body of a streaming chat request.
func streamed(model string) string {
	return strings.Replace(chat(model), "{", `{"stream":true,`, 1)
}

// silent is a replica that sends what head writes and then nothing until the request is aborted.
type silent struct {
	url   string
	calls atomic.Int32
	left  chan struct{}
}

func silentAfter(t *testing.T, head func(w http.ResponseWriter)) *silent {
	s := &silent{left: make(chan struct{}, 100)}
	s.url = upstream(t, func(w http.ResponseWriter, r *http.Request) {
		s.calls.Add(1)
		io.Copy(io.Discard, r.Body)
		head(w)
		<-r.Context().Done()
		s.left <- struct{}{}
	})
	return s
}

func nothing(http.ResponseWriter) {}

// writes starts an event stream and writes text.
func writes(text string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, text)
		w.(http.Flusher).Flush()
	}
}

// overTime describes how a request that exceeds a timeout ends.
type overTime struct {
	limits  func(m *config.Model, bound time.Duration)
	asked   bool // the client sends the bound, too
	answer  func(http.ResponseWriter)
	body    string
	code    string
	written string // response bytes before the error event; empty if the client gets a status instead
}

var overTimes = map[string]overTime{
	"no head": {
		limits: func(m *config.Model, bound time.Duration) { m.FirstByteTimeout = bound },
		answer: nothing, body: streamed("m"), code: "upstream_first_byte_timeout",
	},
	"a head without a body": {
		limits: func(m *config.Model, bound time.Duration) { m.FirstByteTimeout, m.IdleTimeout = bound, time.Hour },
		answer: writes(""), body: streamed("m"), code: "upstream_first_byte_timeout",
	},
	"no response, not streamed": {
		limits: func(m *config.Model, bound time.Duration) { m.UnstreamedFirstByteTimeout = bound },
		answer: nothing, body: chat("m"), code: "upstream_first_byte_timeout",
	},
	"a gap between events": {
		limits: func(m *config.Model, bound time.Duration) { m.FirstByteTimeout, m.IdleTimeout = time.Hour, bound },
		answer: writes("data: 1\n\n"), body: streamed("m"), code: "upstream_idle_timeout", written: "data: 1\n\n",
	},
	"a gap within an event": {
		limits: func(m *config.Model, bound time.Duration) { m.IdleTimeout = bound },
		answer: writes("data: 1\n\ndata: "), body: streamed("m"), code: "upstream_idle_timeout", written: "data: 1\n\n",
	},
	"in all, before an answer": {
		limits: func(m *config.Model, bound time.Duration) { m.TotalTimeout = bound },
		answer: nothing, body: chat("m"), code: "upstream_total_timeout",
	},
	"in all, within a stream": {
		limits: func(m *config.Model, _ time.Duration) { m.FirstByteTimeout, m.IdleTimeout = time.Hour, time.Hour },
		asked:  true,
		answer: writes("data: 1\n\n"), body: streamed("m"), code: "upstream_total_timeout", written: "data: 1\n\n",
	},
	"in all, by the client's bound": {
		limits: func(m *config.Model, _ time.Duration) { m.TotalTimeout = time.Hour },
		asked:  true,
		answer: nothing, body: chat("m"), code: "upstream_total_timeout",
	},
	"in all, by the model's bound": {
		limits: func(m *config.Model, bound time.Duration) { m.TotalTimeout = bound / 2 },
		asked:  true,
		answer: func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			writes("{")(w)
		},
		body: chat("m"), code: "upstream_total_timeout",
	},
}

// end sends such a request and returns how its end differs from the wanted one; empty if it does
// not.
func (test overTime) end(t *testing.T, h2c bool, bound time.Duration) (wrong string) {
	s := silentAfter(t, test.answer)
	m := modelOn("m", s.url, s.url+"/other")
	test.limits(&m, bound)
	f := serve(t, m)
	client, headers := f.h1, []string{}
	if h2c {
		client = f.h2
	}
	if test.asked {
		headers = []string{timeoutHeader, fmt.Sprint(bound.Seconds())}
	}
	r := f.do(t.Context(), client, "POST", "/v1/chat/completions", strings.NewReader(test.body), headers...)
	f.idle()
	if s.calls.Load() > 1 {
		t.Errorf("%d attempts were made", s.calls.Load())
	}
	for range s.calls.Load() {
		receive(t, s.left)
	}
	end := `,"code":"` + test.code + `"}}`
	event, begun := strings.CutPrefix(r.body, test.written)
	switch {
	case !strings.HasSuffix(strings.TrimSuffix(event, "\n\n"), end):
	case test.written == "" && r.err == nil && r.StatusCode == 504 && strings.HasPrefix(event, `{"error":{"message":"The replica`):
		return ""
	case test.written != "" && begun && r.err != nil && r.StatusCode == 200 && strings.HasPrefix(event, `data: {"error":{"message":"The replica`):
		return ""
	}
	return fmt.Sprintf("got %d %q, %v", r.StatusCode, r.body, r.err)
}

// On a busy machine a short timeout may end before the request has reached the wanted phase; a
// longer one decides then.
func TestTimeoutEndsRequestAtReplica(t *testing.T) {
	for name, test := range overTimes {
		for protocol, h2c := range map[string]bool{"HTTP/1.1": false, "h2c": true} {
			t.Run(name+" over "+protocol, func(t *testing.T) {
				wrong := ""
				for _, bound := range []time.Duration{short, 25 * short, 250 * short} {
					if wrong = test.end(t, h2c, bound); wrong == "" {
						return
					}
				}
				t.Error(wrong)
			})
		}
	}
}

func TestTimeoutNoneWithoutBounds(t *testing.T) {
	for name, set := range map[string]func(m *config.Model){
		"no bound":            func(*config.Model) {},
		"an answer in one":    func(m *config.Model) { m.FirstByteTimeout, m.IdleTimeout = time.Millisecond, time.Millisecond },
		"a bound not reached": func(m *config.Model) { m.TotalTimeout = time.Hour },
	} {
		t.Run(name, func(t *testing.T) {
			g := gated(t)
			m := modelOn("m", g.url)
			set(&m)
			f := serve(t, m)
			answer := f.background(func() reply { return f.chat("m") })
			receive(t, g.arrived)
			time.AfterFunc(short, func() { g.open <- struct{}{} })
			if r := receive(t, answer); r.body != "ok" {
				t.Errorf("got %d %s", r.StatusCode, r.body)
			}
		})
	}
}

// The watchdog's timer may fire while the attempt ends.
func TestTimeoutIdleWatchdogStopsWithAttempt(t *testing.T) {
	_, quiet := startWatchdog(t.Context(), &config.Model{FirstByteTimeout: time.Hour}, true)
	quiet.stop()
	quiet.check()
}

// The total timeout starts with the request header, so it includes the upload.
func TestTimeoutTotalCountsFromHeader(t *testing.T) {
	for name, row := range map[string]struct{ allowed, total, want time.Duration }{
		"the client's bound":  {time.Minute, time.Hour, time.Minute},
		"the model's bound":   {time.Hour, time.Minute, time.Minute},
		"only the client's":   {time.Minute, 0, time.Minute},
		"only the model's":    {0, time.Minute, time.Minute},
		"neither has a bound": {0, 0, 0},
	} {
		began := time.Now().Add(-time.Second)
		ctx, stop := withTotalTimeout(t.Context(), began, row.total, row.allowed)
		defer stop()
		if end, bounded := ctx.Deadline(); bounded != (row.want > 0) || bounded && !end.Equal(began.Add(row.want)) {
			t.Errorf("%s: the deadline is %v after the header; want %v", name, end.Sub(began), row.want)
		}
	}
}

func TestTimeoutTotalIncludesQueue(t *testing.T) {
	g := gated(t)
	m := narrow(modelOn("m", g.url))
	m.FirstByteTimeout = time.Hour
	f := serve(t, m)
	first := f.background(func() reply { return f.chat("m") })
	receive(t, g.arrived)
	for _, client := range []*http.Client{f.h1, f.h2} {
		r := f.do(t.Context(), client, "POST", "/v1/chat/completions", strings.NewReader(streamed("m")), timeoutHeader, "0.04")
		wantError(t, r, 503, "queue_timeout", "")
		if r.Header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	f.waiting("m", 0)
	g.open <- struct{}{}
	if r := receive(t, first); r.body != "ok" {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
	if len(g.arrived) > 0 {
		t.Error("a request past its deadline reached the replica")
	}
}

// A request is queued for twice its first-byte timeout. On a busy machine the replica itself may be
// late, so there are several tries with growing timeouts; none would succeed if the queue counted.
func TestTimeoutFirstByteExcludesQueue(t *testing.T) {
	var last reply
	for bound := short; bound < 2*time.Second; bound *= 3 {
		g := gated(t)
		m := narrow(modelOn("m", g.url))
		m.FirstByteTimeout = bound
		f := serve(t, m)
		first := f.background(func() reply { return f.chat("m") }) // not a stream, so without a timeout
		receive(t, g.arrived)
		waits := f.background(func() reply { return f.post("/v1/chat/completions", streamed("m")) })
		f.waiting("m", 1)
		<-time.After(2 * bound)
		g.open <- struct{}{}
		g.open <- struct{}{}
		receive(t, first)
		if last = receive(t, waits); last.body == "ok" {
			return
		}
	}
	t.Errorf("got %d %s", last.StatusCode, last.body)
}

func TestTimeoutRejectsBadHeader(t *testing.T) {
	url, requests := recording(t)
	f := serve(t, modelOn("m", url))
	for _, bad := range []string{"0", "-1", "", "soon", "1e3", "1s", "inf", "NaN", "0x10", "1_0", "0.0", ".", "1 2", "+1", strings.Repeat("9", 400)} {
		wantError(t, f.post("/v1/chat/completions", chat("m"), timeoutHeader, bad), 400, "invalid_timeout", "x-request-timeout-seconds")
	}
	_, answer := f.raw("POST /v1/chat/completions HTTP/1.1\r\nHost: berth\r\nContent-Length: 1000\r\n" +
		"x-request-timeout-seconds: 1\r\nx-request-timeout-seconds: 2\r\n\r\n")
	wantError(t, readReply(t, answer, "POST"), 400, "invalid_timeout", "x-request-timeout-seconds")
	for _, good := range []string{"60", "1.5e0"[:3], "9999999999999999999999", "2592000.25"} {
		if r := f.post("/v1/chat/completions", chat("m"), timeoutHeader, good); r.body != "ok" {
			t.Errorf("with %s: %d %s", good, r.StatusCode, r.body)
		}
		if s := receive(t, requests); s.header.Get(timeoutHeader) != good {
			t.Errorf("the replica received %q", s.header.Get(timeoutHeader))
		}
	}
}

func TestTimeoutConnectNamesReplica(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	m := modelOn("m", "https://"+listener.Addr().String())
	m.ConnectTimeout = short
	f := serve(t, m)
	wantError(t, f.chat("m"), 504, "upstream_connect_timeout", "")
}

// slowBody is a body that returns one byte per read, each after its pause.
type slowBody struct {
	ctx    context.Context
	pauses []time.Duration
}

func (b *slowBody) Read(p []byte) (int, error) {
	if len(b.pauses) == 0 {
		return 0, io.EOF
	}
	pause := b.pauses[0]
	b.pauses = b.pauses[1:]
	select {
	case <-time.After(pause):
		return copy(p, "x"), nil
	case <-b.ctx.Done():
		return 0, context.Cause(b.ctx)
	}
}

func (b *slowBody) Close() error { return nil }

func TestTimeoutIdleCountsFromLastByte(t *testing.T) {
	const s = time.Second
	for _, test := range []struct {
		firstByte, gap time.Duration
		pauses         []time.Duration
		code           string // "" for none
		latest         time.Duration
	}{
		{600 * s, 300 * s, []time.Duration{599 * s, 299 * s, 299 * s}, "", 0},
		{600 * s, 300 * s, []time.Duration{700 * s}, "upstream_first_byte_timeout", 600 * s},
		{600 * s, 300 * s, []time.Duration{s, 376 * s}, "upstream_idle_timeout", 376 * s},
		{600 * s, 4 * s, []time.Duration{500 * s, 3900 * time.Millisecond, 6 * s}, "upstream_idle_timeout", 509 * s},
		{2 * s, 600 * s, []time.Duration{s, 599 * s, 751 * s}, "upstream_idle_timeout", 1351 * s},
		{0, 8 * s, []time.Duration{3600 * s, 7 * s, 11 * s}, "upstream_idle_timeout", 3617 * s},
		{8 * s, 0, []time.Duration{7 * s, 3600 * s}, "", 0},
		{8 * s, 0, []time.Duration{11 * s}, "upstream_first_byte_timeout", 10 * s},
	} {
		t.Run(fmt.Sprint(test.firstByte, test.gap, test.pauses), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				ctx, quiet := startWatchdog(t.Context(), &config.Model{FirstByteTimeout: test.firstByte, IdleTimeout: test.gap}, true)
				defer quiet.stop()
				resp := &http.Response{Body: &slowBody{ctx, test.pauses}}
				quiet.wrapBody(resp)
				_, err := io.Copy(io.Discard, resp.Body)
				cut, _ := errors.AsType[*streaming.AbortError](err)
				switch {
				case test.code == "" && err != nil:
					t.Errorf("ended with %v after %v", err, time.Since(began))
				case test.code != "" && (cut == nil || cut.Code != test.code || time.Since(began) > test.latest):
					t.Errorf("ended with %v after %v, want %s within %v", err, time.Since(began), test.code, test.latest)
				}
			})
		})
	}
}

func TestTimeoutIgnoresSlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, quiet := startWatchdog(t.Context(), &config.Model{FirstByteTimeout: time.Second, IdleTimeout: time.Second}, true)
		defer quiet.stop()
		resp := &http.Response{Body: &slowBody{ctx, make([]time.Duration, 3)}}
		quiet.wrapBody(resp)
		for range 3 {
			if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour) // the client reads it
		}
	})
}

func TestTimeoutStreamKeepAliveComments(t *testing.T) {
	for _, first := range []string{"", "data: 1\n\n"} {
		next := make(chan string)
		m := modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			writes(first)(w)
			io.WriteString(w, <-next)
		}))
		m.StreamKeepAlive = 5 * time.Millisecond
		f := serve(t, m)
		for _, client := range []*http.Client{f.h1, f.h2} {
			s := f.stream(t.Context(), client)
			const comment = ": keep-alive\n\n"
			got := s.read(len(first + comment + comment))
			if strings.Count(got, comment) == 0 {
				t.Fatalf("read %q", got)
			}
			next <- "data: 2\n\n"
			rest, err := io.ReadAll(s)
			if err != nil || strings.ReplaceAll(got+string(rest), comment, "") != first+"data: 2\n\n" {
				t.Errorf("read %q, %q and %v", got, rest, err)
			}
		}
	}
}

func TestTimeoutAppliesToKeptAliveStream(t *testing.T) {
	s := silentAfter(t, writes(""))
	m := modelOn("m", s.url)
	m.StreamKeepAlive, m.FirstByteTimeout = 5*time.Millisecond, 2*short
	f := serve(t, m)
	for _, client := range []*http.Client{f.h1, f.h2} {
		r := f.do(t.Context(), client, "POST", "/v1/chat/completions", strings.NewReader(streamed("m")))
		if r.StatusCode == 504 {
			continue // the machine was too slow for a comment
		}
		event := strings.ReplaceAll(r.body, ": keep-alive\n\n", "")
		if r.StatusCode != 200 || r.err == nil || !strings.HasPrefix(event, `data: {"error":`) || !strings.Contains(event, "upstream_first_byte_timeout") {
			t.Errorf("got %d %q, %v", r.StatusCode, r.body, r.err)
		}
	}
}

func TestTimeoutBoundsStoredResponse(t *testing.T) {
	for name, set := range map[string]func(m *config.Model) string{
		"by the client": func(*config.Model) string { return "0.04" },
		"by the model":  func(m *config.Model) string { m.TotalTimeout = short; return "3600" },
	} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int32
			m := modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
				if calls.Add(1) == 1 { // the lookup of the owner
					ok(w, r)
					return
				}
				<-r.Context().Done()
			}))
			header := set(&m)
			f := serve(t, m)
			r := f.do(t.Context(), f.h1, "GET", "/v1/responses/resp_1", nil, timeoutHeader, header)
			wantError(t, r, 504, "upstream_total_timeout", "")
			wantError(t, f.do(t.Context(), f.h1, "GET", "/v1/responses/resp_1", nil, timeoutHeader, "x"), 400, "invalid_timeout", "x-request-timeout-seconds")
		})
	}
}

// endlessBody is always ready.
type endlessBody struct{}

func (endlessBody) Read(p []byte) (int, error) { return len(p), nil }
func (endlessBody) Close() error               { return nil }

// BenchmarkIdleWatchdog measures a watchdog per attempt and per read.
func BenchmarkIdleWatchdog(b *testing.B) {
	m := &config.Model{FirstByteTimeout: 10 * time.Minute, IdleTimeout: 5 * time.Minute}
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	b.Run("attempt", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, quiet := startWatchdog(ctx, m, true)
			quiet.stop()
		}
	})
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		_, quiet := startWatchdog(ctx, m, true)
		defer quiet.stop()
		resp, buf := &http.Response{Body: endlessBody{}}, make([]byte, 100)
		quiet.wrapBody(resp)
		for b.Loop() {
			resp.Body.Read(buf)
		}
	})
}

// startWatchdog starts the watchdog of an attempt, and returns the attempt's context.
func startWatchdog(parent context.Context, m *config.Model, stream bool) (context.Context, *idleWatchdog) {
	w := newIdleWatchdog(parent, m, stream)
	return &w.ctx, w
}
