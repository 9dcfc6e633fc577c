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

// scriptedUpstream is an upstream that sends, byte for byte, the response of the script that a
// request names. The name is between vertical bars anywhere in the request body: a prompt, an
// input, a message.
type scriptedUpstream struct {
	*httptest.Server
	scripts map[string]script
	acks    chan struct{} // one per text that the client acknowledged
	active  atomic.Int64  // responses in progress

	mu       sync.Mutex
	received []receivedRequest
}

// receivedRequest is a request as received by the upstream.
type receivedRequest struct {
	script, line, body string
	header             http.Header
}

// script is an operation of a client and the upstream's responses.
type script struct {
	name      string
	operation string // client operation
	options   string // options for the client, as members of a JSON object

	refusals    []bufferedResponse // responses to the first attempts
	response    bufferedResponse   // response to the attempt after them, unless writes is set
	writes      []string           // writes of an event stream, each flushed
	acknowledge bool               // after a text, the next write waits for the client's acknowledgement
	ending      streamEnding
}

// bufferedResponse is a response that is not a stream.
type bufferedResponse struct {
	status int
	header string // lines of the form name: value
	body   string
}

// streamEnding is the ending of an event stream.
type streamEnding int

const (
	endComplete        streamEnding = iota
	endContentLength                // with a Content-Length
	endConnectionClose              // by the end of the connection
	endGzip                         // compressed, if the client accepts gzip
	endAbort                        // the connection is aborted mid-stream
	endNever                        // the stream stays open until the client disconnects
)

var scriptName = regexp.MustCompile(`\|([^|"]+)\|`)

// startScriptedUpstream starts an upstream with the given scripts.
func startScriptedUpstream(t *testing.T, scripts []script) *scriptedUpstream {
	s := &scriptedUpstream{scripts: map[string]script{}, acks: make(chan struct{}, 1000)}
	for _, a := range scripts {
		s.scripts[a.name] = a
	}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *scriptedUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/ack":
		s.acks <- struct{}{}
	case strings.HasSuffix(r.URL.Path, "/models"):
		writeJSON(w, `{"object":"list","data":[{"id":"`+scriptedModel+`","object":"model","created":1700000000,"owned_by":"berth"}]}`)
	case strings.Contains(r.URL.Path, "/models/"):
		writeJSON(w, `{"id":"`+scriptedModel+`","object":"model","created":1700000000,"owned_by":"berth"}`)
	case r.Method == http.MethodGet:
		w.WriteHeader(http.StatusOK) // health check
	default:
		s.active.Add(1)
		defer s.active.Add(-1)
		s.respond(w, r)
	}
}

func writeJSON(w http.ResponseWriter, body string) {
	w.Header().Set("Content-Type", "application/json")
	io.WriteString(w, body)
}

// respond sends the response of the script that the request names.
func (s *scriptedUpstream) respond(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var name string
	if m := scriptName.FindSubmatch(body); m != nil {
		name = string(m[1])
	}
	a, known := s.scripts[name]
	if !known {
		http.Error(w, fmt.Sprintf("unknown script %q", name), http.StatusTeapot)
		return
	}
	attempt := s.record(receivedRequest{name, r.Method + " " + r.URL.Path, string(body), r.Header})
	w.Header().Set("X-Request-Id", "req-of-the-upstream")
	switch {
	case attempt <= len(a.refusals):
		a.refusals[attempt-1].write(w)
	case a.writes == nil:
		a.response.write(w)
	default:
		s.writeStream(w, r, a)
	}
}

// record stores a request and returns the number of requests so far for the same script and client
// variant.
func (s *scriptedUpstream) record(r receivedRequest) (attempt int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.received = append(s.received, r)
	for _, other := range s.received {
		if other.script == r.script && other.header.Get("X-Variant") == r.header.Get("X-Variant") {
			attempt++
		}
	}
	return attempt
}

func (s *scriptedUpstream) requests() []receivedRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.received)
}

// write sends the response.
func (a bufferedResponse) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	for line := range strings.Lines(a.header) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		w.Header().Set(name, value)
	}
	w.WriteHeader(max(a.status, http.StatusOK))
	io.WriteString(w, a.body)
}

// writeStream writes an event stream. Each write is flushed, but TCP may merge writes.
func (s *scriptedUpstream) writeStream(w http.ResponseWriter, r *http.Request, a script) {
	for len(s.acks) > 0 {
		<-s.acks
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	flush := http.NewResponseController(w).Flush
	var to io.Writer = w
	switch {
	case a.ending == endContentLength:
		w.Header().Set("Content-Length", fmt.Sprint(len(strings.Join(a.writes, ""))))
	case a.ending == endConnectionClose:
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		to, flush = conn, func() error { return nil }
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
	case a.ending == endGzip && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip"):
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer z.Close()
		to, flush = z, z.Flush
	}
	for _, piece := range a.writes {
		if _, err := io.WriteString(to, piece); err != nil || flush() != nil {
			return
		}
		hasText := strings.Contains(piece, `"delta":{"content":"`) && strings.HasSuffix(piece, "\n\n")
		if a.acknowledge && hasText && !s.waitAck(r.Context()) {
			return
		}
	}
	switch a.ending {
	case endAbort:
		panic(http.ErrAbortHandler)
	case endNever:
		<-r.Context().Done()
	}
}

// waitAck waits for the client's acknowledgement of a text and reports whether it arrived.
func (s *scriptedUpstream) waitAck(ctx context.Context) bool {
	deadline := time.NewTimer(waitTimeout)
	defer deadline.Stop()
	select {
	case <-s.acks:
		return true
	case <-ctx.Done():
	case <-deadline.C:
	}
	return false
}
