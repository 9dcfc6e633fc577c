package ingress

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth/config"
)

const comment = ": keep-alive\n\n"

// openedFleet serves the model m with the only slot of its replica taken until release is called.
// The next request gets the response of next. Comments begin in the queue.
func openedFleet(t *testing.T, next http.HandlerFunc, set func(m *config.Model)) (f *front, release func()) {
	held, free := make(chan struct{}, 1), make(chan struct{})
	var later atomic.Bool
	m := modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if later.Swap(true) {
			next(w, r)
			return
		}
		held <- struct{}{}
		<-free
		ok(w, r)
	}))
	m.Replicas[0].MaxOngoingRequests = 1
	m.StreamKeepAlive, m.KeepAliveWhileQueued = 5*time.Millisecond, true
	if set != nil {
		set(&m)
	}
	f = serve(t, m)
	holder := f.background(func() reply { return f.chat("m") })
	receive(t, held)
	return f, func() {
		close(free)
		receive(t, holder)
	}
}

// queueStream posts a stream and reads the first comment while the request is in the queue.
func queueStream(t *testing.T, f *front, client *http.Client, path string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", f.url(path), strings.NewReader(streamed("m")))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	first := make([]byte, len(comment))
	if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != comment {
		t.Fatalf("read %q and %v; want a comment", first, err)
	}
	if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") || resp.Header.Get("X-Request-Id") == "" {
		t.Errorf("got %d with header %v", resp.StatusCode, resp.Header)
	}
	return resp
}

// readOpened reads the rest of a stream without its comments.
func readOpened(resp *http.Response) (string, error) {
	text, err := io.ReadAll(resp.Body)
	return strings.ReplaceAll(string(text), comment, ""), err
}

func TestOpenedStreamGetsItsResponse(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		const events = "data: 1\n\ndata: [DONE]\n\n"
		var encoding string
		f, release := openedFleet(t, func(w http.ResponseWriter, r *http.Request) {
			encoding = r.Header.Get("Accept-Encoding")
			writes(events)(w)
		}, nil)
		client := f.h1
		if h2 {
			client = f.h2
		}
		resp := queueStream(t, f, client, "/v1/chat/completions")
		release()
		if got, err := readOpened(resp); got != events || err != nil {
			t.Errorf("h2 %t: read %q and %v", h2, got, err)
		}
		if encoding != "" && encoding != "identity" {
			t.Errorf("the replica was offered %s", encoding)
		}
	}
}

// What fails after the first comment is an error event, and the response does not look complete.
func TestOpenedStreamFailsByAnEvent(t *testing.T) {
	refuses := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			io.WriteString(w, body)
		}
	}
	for name, test := range map[string]struct {
		next  http.HandlerFunc // nil: the slot is never released
		set   func(m *config.Model)
		wants []string
	}{
		"queue timeout": {nil, func(m *config.Model) { m.QueueTimeout = 50 * time.Millisecond }, []string{"queue_timeout"}},
		"time limit":    {nil, func(m *config.Model) { m.TotalTimeout = 50 * time.Millisecond }, []string{"queue_timeout"}},
		"engine's 400": {refuses(400, `{"error":{"message":"Too \"long\".","code":400}}`), nil,
			[]string{"upstream_status", "status 400: Too \\\"long\\\"."}},
		"busy engine":         {refuses(503, queueFull), nil, []string{"upstream_status", "The request queue is full."}},
		"not an event stream": {refuses(200, "text"), nil, []string{"upstream_status", "status 200: text"}},
		"broken stream": {func(w http.ResponseWriter, _ *http.Request) {
			writes("data: 1\n\n")(w)
			panic(http.ErrAbortHandler)
		}, nil, []string{"upstream_broken"}},
		"no response": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			func(m *config.Model) { m.MaxAttempts = 2 }, []string{"upstream_broken"}},
	} {
		for path, prefix := range map[string]string{"/v1/chat/completions": `data: {"error":`, "/v1/messages": "event: error\ndata: {"} {
			t.Run(name+path, func(t *testing.T) {
				f, release := openedFleet(t, test.next, test.set)
				resp := queueStream(t, f, f.h1, path)
				if test.next != nil {
					release()
				} else {
					defer release()
				}
				got, err := readOpened(resp)
				event := strings.TrimPrefix(got, "data: 1\n\n")
				if err == nil || !strings.HasPrefix(event, prefix) || strings.Count(event, "\n\n") != 1 {
					t.Errorf("read %q and %v; want one error event and a broken connection", got, err)
				}
				for _, want := range test.wants {
					if path == "/v1/messages" && !strings.Contains(want, " ") {
						continue // Anthropic's form has no code
					}
					if !strings.Contains(event, want) {
						t.Errorf("%q lacks %q", event, want)
					}
				}
			})
		}
	}
}

func TestOpenedStreamIsRetried(t *testing.T) {
	const events = "data: 1\n\n"
	var calls atomic.Int32
	f, release := openedFleet(t, func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			panic(http.ErrAbortHandler) // once, which is retried
		}
		writes(events)(w)
	}, nil)
	resp := queueStream(t, f, f.h1, "/v1/chat/completions")
	release()
	if got, err := readOpened(resp); got != events || err != nil || calls.Load() != 2 {
		t.Errorf("read %q and %v after %d calls", got, err, calls.Load())
	}
}

// A client that leaves an opened stream leaves the queue.
func TestOpenedStreamEndsWithItsClient(t *testing.T) {
	f, release := openedFleet(t, nil, nil)
	resp := queueStream(t, f, f.h1, "/v1/chat/completions")
	resp.Body.Close()
	for deadline := time.Now().Add(10 * time.Second); f.metric(`berth_queue_length{model="m"}`) != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the request is still in the queue")
		}
	}
	release()
}

// Requests that are not streams, and refusals before the first comment, keep their status.
func TestOpenedStreamIsOnlyAStreamThatWaits(t *testing.T) {
	f, release := openedFleet(t, nil, func(m *config.Model) { m.QueueTimeout = 50 * time.Millisecond })
	wantError(t, f.chat("m"), 503, "queue_timeout", "")
	release()

	f, release = openedFleet(t, nil, func(m *config.Model) { m.MaxQueuedRequests = 0 })
	r := f.do(t.Context(), f.h1, "POST", "/v1/chat/completions", strings.NewReader(streamed("m")))
	wantError(t, r, 429, "queue_full", "")
	release()

	f, release = openedFleet(t, nil, func(m *config.Model) { m.KeepAliveWhileQueued, m.QueueTimeout = false, 50*time.Millisecond })
	r = f.do(t.Context(), f.h1, "POST", "/v1/chat/completions", strings.NewReader(streamed("m")))
	wantError(t, r, 503, "queue_timeout", "")
	release()
}

// Comments are nothing of a response, so a break after the engine's header is retried like any
// other before the first byte.
func TestOpenedStreamIsRetriedAfterTheHeader(t *testing.T) {
	const events = "data: 1\n\n"
	held, free := make(chan struct{}, 1), make(chan struct{})
	other := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		select {
		case held <- struct{}{}:
			<-free
			ok(w, r)
		default:
			writes(events)(w)
		}
	})
	broke := make(chan struct{})
	var m config.Model
	f, release := openedFleet(t, func(w http.ResponseWriter, _ *http.Request) {
		defer close(broke)
		w.Header().Set("Content-Type", "text/event-stream")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}, func(set *config.Model) { m = *set })
	m.Replicas = append(slices.Clone(m.Replicas), config.Replica{ID: "b", URL: other, MaxOngoingRequests: 1})
	f.mustApply(m)
	holder := f.background(func() reply { return f.chat("m") })
	f.eventually("both are full", func() bool { return f.ongoing() == 2 })
	resp := queueStream(t, f, f.h1, "/v1/chat/completions")
	release()
	receive(t, broke)
	close(free)
	if got, err := readOpened(resp); got != events || err != nil {
		t.Errorf("read %q and %v", got, err)
	}
	receive(t, holder)
}
