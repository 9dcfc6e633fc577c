package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// streamEvent is the SSE event of one token and streamDone the end of a stream, as vLLM sends them.
const (
	streamEvent = `data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"bench",` +
		`"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	streamDone = "data: [DONE]\n\n"
)

// chatRequest is the request body that the client sends and the engine parses.
type chatRequest struct {
	Model     string    `json:"model"`
	Stream    bool      `json:"stream"`
	MaxTokens int       `json:"max_tokens"`
	GapMS     int       `json:"gap_ms"`   // pause between two events
	FirstMS   int       `json:"first_ms"` // delay of the first event
	Messages  []message `json:"messages"`
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// responseBody returns the whole response body for the request.
func (a chatRequest) responseBody() string {
	if a.Stream {
		return strings.Repeat(streamEvent, a.MaxTokens) + streamDone
	}
	return fmt.Sprintf(`{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"bench","choices":[{"index":0,`+
		`"message":{"role":"assistant","content":%q},"finish_reason":"stop"}],"usage":{"prompt_tokens":50,"completion_tokens":%d,"total_tokens":%d}}`,
		strings.Repeat(" token", a.MaxTokens), a.MaxTokens, 50+a.MaxTokens)
}

// engine is an HTTP handler for chat requests. It counts active requests and client disconnects.
type engine struct{ active, disconnected atomic.Int64 }

// counts is the response of GET /counts.
type counts struct{ Active, Disconnected int64 }

// serveEngine serves on a free port until stdin is closed. It prints the address on stdout.
func serveEngine() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	e, mux := new(engine), http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", e.handleCompletion)
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /counts", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(counts{e.active.Load(), e.disconnected.Load()})
	})
	fmt.Println(listener.Addr())
	go http.Serve(listener, mux)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func (e *engine) handleCompletion(w http.ResponseWriter, r *http.Request) {
	var req chatRequest
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &req)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if len(req.Messages) > 0 {
		_ = json.NewDecoder(strings.NewReader(req.Messages[0].Content)).Decode(&req) // fields that the prompt lacks keep their values
	}
	e.active.Add(1)
	defer e.active.Add(-1)
	if !req.Stream {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, req.responseBody())
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if !writeEvents(w, r, req) {
		e.disconnected.Add(1)
	}
}

// writeEvents sends each event at its time. It reports false if the client disconnected.
func writeEvents(w http.ResponseWriter, r *http.Request, req chatRequest) bool {
	timer := time.NewTimer(time.Duration(req.FirstMS) * time.Millisecond)
	defer timer.Stop()
	next, gap := time.Now(), time.Duration(req.GapMS)*time.Millisecond
	for i := range req.MaxTokens {
		if i == 0 && req.FirstMS > 0 || i > 0 && gap > 0 {
			select {
			case <-timer.C:
			case <-r.Context().Done():
				return false
			}
		}
		io.WriteString(w, streamEvent)
		http.NewResponseController(w).Flush()
		next = next.Add(gap)
		timer.Reset(time.Until(next))
	}
	io.WriteString(w, streamDone)
	return true
}
