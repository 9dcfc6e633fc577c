package e2e

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// scripted is an upstream that plays, byte for byte, the scene that a request asks for. A scene is asked for by writing
// its name between bars in whatever the request carries: a prompt, an input, a message.
type scripted struct {
	*httptest.Server
	scenes map[string]act
	heard  chan struct{} // one for each text that the client says it has received
	open   atomic.Int64  // answers under way

	mu   sync.Mutex
	seen []arrivedRequest
}

// arrivedRequest is what the upstream got of a request.
type arrivedRequest struct {
	scene, line, body string
	header            http.Header
}

// act is a scene: what the client does, and what the upstream answers.
type act struct {
	name string
	do   string // one of the things that a client can be told to do
	opts string // more for the client, as members of a JSON object

	refusals []whole  // the answers to the first attempts
	answer   whole    // after them, unless it is a stream
	writes   []string // of an event stream, each flushed
	hearing  bool     // the next write waits until the client has received the text of the last
	ends     closing
}

// whole is an answer that is not a stream.
type whole struct {
	status int
	header string // name: value, one a line
	body   string
}

// closing is how an event stream ends.
type closing int

const (
	endsWell     closing = iota
	withLength           // the stream has a Content-Length
	withoutFrame         // the end of the connection is the end of the stream
	zipped               // if the client accepts that
	breaksOff            // the connection ends amid the stream
	never                // the client has to go
)

var sceneName = regexp.MustCompile(`\|([^|"]+)\|`)

// play starts an upstream that knows these scenes.
func play(t *testing.T, acts []act) *scripted {
	s := &scripted{scenes: map[string]act{}, heard: make(chan struct{}, 1000)}
	for _, a := range acts {
		s.scenes[a.name] = a
	}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/heard":
		s.heard <- struct{}{}
	case strings.HasSuffix(r.URL.Path, "/models"):
		writeJSON(w, `{"object":"list","data":[{"id":"`+scriptedModel+`","object":"model","created":1700000000,"owned_by":"berth"}]}`)
	case strings.Contains(r.URL.Path, "/models/"):
		writeJSON(w, `{"id":"`+scriptedModel+`","object":"model","created":1700000000,"owned_by":"berth"}`)
	case r.Method == http.MethodGet:
		w.WriteHeader(http.StatusOK) // it is in good health
	default:
		s.open.Add(1)
		defer s.open.Add(-1)
		s.perform(w, r)
	}
}

func writeJSON(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "application/json")
	io.WriteString(w, body)
}

func (s *scripted) perform(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var name string
	if m := sceneName.FindSubmatch(body); m != nil {
		name = string(m[1])
	}
	a, known := s.scenes[name]
	if !known {
		http.Error(w, fmt.Sprintf("there is no scene %q", name), http.StatusTeapot)
		return
	}
	attempt := s.note(arrivedRequest{name, r.Method + " " + r.URL.Path, string(body), r.Header})
	w.Header().Set("X-Request-Id", "req-of-the-upstream")
	switch {
	case attempt <= len(a.refusals):
		a.refusals[attempt-1].send(w)
	case a.writes == nil:
		a.answer.send(w)
	default:
		s.stream(w, r, a)
	}
}

// note writes down a request and returns how many there were for its scene from this kind of client.
func (s *scripted) note(r arrivedRequest) (attempt int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, r)
	for _, other := range s.seen {
		if other.scene == r.scene && other.header.Get("X-Way") == r.header.Get("X-Way") {
			attempt++
		}
	}
	return attempt
}

func (s *scripted) requests() []arrivedRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

func (a whole) send(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	for line := range strings.Lines(a.header) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		w.Header().Set(name, value)
	}
	w.WriteHeader(max(a.status, http.StatusOK))
	io.WriteString(w, a.body)
}

// stream writes an event stream. It counts on nothing but TCP to keep the pieces apart.
func (s *scripted) stream(w http.ResponseWriter, r *http.Request, a act) {
	for len(s.heard) > 0 {
		<-s.heard
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	flush := http.NewResponseController(w).Flush
	var to io.Writer = w
	switch {
	case a.ends == withLength:
		w.Header().Set("Content-Length", fmt.Sprint(len(strings.Join(a.writes, ""))))
	case a.ends == withoutFrame:
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		to, flush = conn, func() error { return nil }
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
	case a.ends == zipped && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip"):
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer z.Close()
		to, flush = z, z.Flush
	}
	for _, piece := range a.writes {
		if _, err := io.WriteString(to, piece); err != nil || flush() != nil {
			return
		}
		tells := strings.Contains(piece, `"delta":{"content":"`) && strings.HasSuffix(piece, "\n\n")
		if a.hearing && tells && !s.isHeard(r.Context()) {
			return
		}
	}
	switch a.ends {
	case breaksOff:
		panic(http.ErrAbortHandler)
	case never:
		<-r.Context().Done()
	}
}

// isHeard waits for the client to say that it has received a text.
func (s *scripted) isHeard(ctx context.Context) bool {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	select {
	case <-s.heard:
		return true
	case <-ctx.Done():
	case <-deadline.C:
	}
	return false
}
