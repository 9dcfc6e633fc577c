package ingress

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// wantLines waits until each pattern matches a line of the log, and returns the log since the last
// look.
func (f *front) wantLines(patterns ...string) (text string) {
	f.t.Helper()
	for _, pattern := range patterns {
		line := regexp.MustCompile("(?m)" + pattern)
		deadline := time.Now().Add(10 * time.Second)
		for text += f.log.take(); !line.MatchString(text); text += f.log.take() {
			if time.Now().After(deadline) {
				f.t.Fatalf("no line matches %s in\n%s", pattern, text)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return text
}

// Hundreds of failures at once are a few lines with their number.
func TestFailureLogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := new(record)
		l := newFailureLog(slog.New(slog.NewTextHandler(text, nil)))
		fail := func(replica string, n int) {
			for i := range n {
				l.report(responseFailure{
					model: "m", replica: replica, requestID: fmt.Sprint("r", i), phase: "streaming", bytes: 3,
					after: 1234 * time.Millisecond, reason: "broken", at: time.Now(),
				})
			}
		}
		want := func(lines ...string) {
			t.Helper()
			synctest.Wait()
			if got := untimed(text.take()); strings.Join(got, "\n") != strings.Join(lines, "\n") {
				t.Errorf("logged\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(lines, "\n"))
			}
		}
		line := func(replica string, n int) string {
			return fmt.Sprintf(`replica=%s model=m request_id=r%d phase=streaming bytes=3 after=1.2s retried=false reason=broken`, replica, n)
		}
		fail("a", 256)
		fail("b", 2)
		want(`level=WARN msg="response failed" `+line("a", 0), `level=WARN msg="response failed" `+line("b", 0))
		time.Sleep(failureInterval - 1)
		want()
		time.Sleep(1)
		synctest.Wait()
		got := untimed(text.take())
		for _, line := range []string{`level=WARN msg="more responses failed" count=255 ` + line("a", 255), `level=WARN msg="response failed" ` + line("b", 1)} {
			if len(got) != 2 || got[0] != line && got[1] != line {
				t.Errorf("logged\n%s\nwithout\n%s", strings.Join(got, "\n"), line)
			}
		}
		fail("a", 3) // within the interval of the last line
		want()
		time.Sleep(failureInterval)
		want(`level=WARN msg="more responses failed" count=3 ` + line("a", 2))
		time.Sleep(2 * failureInterval)
		fail("a", 2) // long after it
		want(`level=WARN msg="response failed" ` + line("a", 0))
		if total, recent := l.of("m", "a"); total != 261 || len(recent) != recentFailures || recent[recentFailures-1].requestID != "r1" {
			t.Errorf("%d failures, the latest are %v", total, recent)
		}
		l.close()
		want(`level=WARN msg="response failed" ` + line("a", 1))
		time.Sleep(time.Minute)
		want()
	})
}

func TestFailureLogForgetsReplicasThatHaveLongBeenGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFailureLog(slog.New(slog.DiscardHandler))
		defer l.close()
		for n := range 100 {
			l.report(responseFailure{model: "m", replica: fmt.Sprint("pod-", n), at: time.Now()})
			time.Sleep(time.Minute)
		}
		if n := len(l.replicas); n > 62 {
			t.Errorf("%d replicas are remembered after 100 failures, one a minute", n)
		}
	})
}

// From each fault of a replica to one line.
func TestFailureOfEachKindIsOneLine(t *testing.T) {
	const begun = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\na\r\ndata: {}\n\n\r\n"
	silent := func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}
	for name, c := range map[string]struct {
		handler  http.HandlerFunc
		attempts int
		want     []string // after the replica and the model
	}{
		"reset, retried": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 2,
			[]string{`phase=first_byte bytes=0 after=\S+ retried=true reason=.*connection broken`,
				`phase=first_byte bytes=0 after=\S+ retried=false reason=.*connection broken`}},
		"invalid HTTP, retried": {speak("SSH-2.0-OpenSSH\r\n\r\n"), 3,
			[]string{`phase=first_byte bytes=0 after=\S+ retried=true reason=.*invalid HTTP`,
				`phase=first_byte bytes=0 after=\S+ retried=false reason=.*invalid HTTP`}},
		"truncated": {speak(begun), 3,
			[]string{`phase=streaming bytes=10 after=\S+ retried=false reason="connection broken: upstream broken`}},
		"500": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500); io.WriteString(w, "{}") }, 3,
			[]string{`phase=first_byte bytes=0 after=\S+ retried=false reason="server error \(500 Internal Server Error\)"`}},
		"error event": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "data: {\"error\":{\"message\":\"EngineCore\"}}\n\ndata: [DONE]\n\n")
		}, 3, []string{`phase=streaming bytes=\d+ after=\S+ retried=false reason="error event in the stream"`}},
		"silence": {silent, 3,
			[]string{`phase=first_byte bytes=0 after=\S+ retried=false reason=.*no byte of its response within 0.1 s`}},
		"a full queue":   {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503); io.WriteString(w, queueFull) }, 3, nil},
		"a bad request":  {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400) }, 3, nil},
		"a good stream":  {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "data: 1\n\ndata: [DONE]\n\n") }, 3, nil},
		"no connections": {nil, 3, nil},
	} {
		t.Run(name, func(t *testing.T) {
			urls := []string{refusing(2), refusing(3)}
			if c.handler != nil {
				urls = []string{upstream(t, c.handler), upstream(t, c.handler)}[:max(1, len(c.want))]
			}
			m := modelOn("m", urls...)
			m.MaxAttempts, m.UnstreamedFirstByteTimeout = c.attempts, 100*time.Millisecond
			f := serve(t, m)
			f.chat("m")
			f.idle()
			f.failures.close()
			text := f.log.take()
			if n := strings.Count(text, "responses failed") + strings.Count(text, "response failed"); n != len(c.want) {
				t.Errorf("%d lines; want %d:\n%s", n, len(c.want), text)
			}
			for i, want := range c.want {
				pattern := fmt.Sprintf(`level=WARN msg="response failed" replica=[ab] model=m request_id=\S+ %s`, want)
				if !regexp.MustCompile(pattern).MatchString(text) {
					t.Errorf("line %d does not match %s:\n%s", i, pattern, text)
				}
			}
		})
	}
}

// A client that leaves is no failure of the replica, in whatever phase.
func TestFailureLogOmitsDisconnectsOfClients(t *testing.T) {
	for name, leave := range leavers {
		t.Run(name, func(t *testing.T) {
			g := gated(t)
			f := serve(t, modelOn("m", g.url))
			end := leave(f)
			receive(t, g.arrived)
			end()
			receive(t, g.left)
			f.wantAbort("m", "first_byte")
			f.failures.close()
			if text := f.log.take(); strings.Contains(text, "failed") {
				t.Errorf("logged:\n%s", text)
			}
		})
	}
}

func TestFailureOfManyStreamsOfOneReplicaIsAFewLines(t *testing.T) {
	const streams = 100
	die := make(chan struct{})
	m := modelOn("m", upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {}\n\n")
		w.(http.Flusher).Flush()
		<-die
		panic(http.ErrAbortHandler)
	}))
	m.Replicas[0].MaxOngoingRequests = streams
	f := serve(t, m)
	var all []stream
	for range streams {
		all = append(all, f.stream(context.Background(), f.h1))
	}
	for _, s := range all {
		s.read(len("data: {}\n\n"))
	}
	close(die)
	f.idle()
	f.failures.close()
	text := f.wantLines(`msg="response failed" replica=a .* phase=streaming`, fmt.Sprintf(`msg="more responses failed" count=%d replica=a `, streams-1))
	if n := strings.Count(text, "\n"); n > 3 {
		t.Errorf("%d lines:\n%s", n, text)
	}
}

// The log is complete when the server has ended.
func TestFailureLogIsCompleteAtTheEnd(t *testing.T) {
	text := new(record)
	s, err := New(configured(modelOn("m", refusing(1))), slog.New(slog.NewTextHandler(text, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.failures.report(responseFailure{model: "m", replica: "a", at: time.Now()})
	}
	s.Close()
	if got := text.take(); !strings.Contains(got, `msg="more responses failed" count=2`) {
		t.Errorf("logged:\n%s", got)
	}
}
