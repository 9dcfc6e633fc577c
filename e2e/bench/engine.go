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

// event is one token of a stream, and done is its end, as vLLM writes them.
const (
	event = `data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"bench",` +
		`"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	done = "data: [DONE]\n\n"
)

// ask is the request that engine and client have in common.
type ask struct {
	Model     string    `json:"model"`
	Stream    bool      `json:"stream"`
	MaxTokens int       `json:"max_tokens"`
	GapMS     int       `json:"gap_ms"`   // between two events
	FirstMS   int       `json:"first_ms"` // before the first
	Messages  []message `json:"messages"`
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// answer is the body that the ask is answered with.
func (a ask) answer() string {
	if a.Stream {
		return strings.Repeat(event, a.MaxTokens) + done
	}
	return fmt.Sprintf(`{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"bench","choices":[{"index":0,`+
		`"message":{"role":"assistant","content":%q},"finish_reason":"stop"}],"usage":{"prompt_tokens":50,"completion_tokens":%d,"total_tokens":%d}}`,
		strings.Repeat(" token", a.MaxTokens), a.MaxTokens, 50+a.MaxTokens)
}

// engine answers asks. It counts the ones under way and those whose client left.
type engine struct{ open, left atomic.Int64 }

// counts is what the engine tells of itself.
type counts struct{ Open, Left int64 }

// runEngine serves on a free port, which it prints, until its input ends.
func runEngine() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	e, mux := new(engine), http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", e.complete)
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /counts", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(counts{e.open.Load(), e.left.Load()})
	})
	fmt.Println(listener.Addr())
	go http.Serve(listener, mux)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func (e *engine) complete(w http.ResponseWriter, r *http.Request) {
	var a ask
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &a)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if len(a.Messages) > 0 {
		_ = json.NewDecoder(strings.NewReader(a.Messages[0].Content)).Decode(&a) // a prompt without them leaves the fields as they are
	}
	e.open.Add(1)
	defer e.open.Add(-1)
	if !a.Stream {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, a.answer())
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if !stream(w, r, a) {
		e.left.Add(1)
	}
}

// stream sends each event at its time; false if the client left.
func stream(w http.ResponseWriter, r *http.Request, a ask) bool {
	timer := time.NewTimer(time.Duration(a.FirstMS) * time.Millisecond)
	defer timer.Stop()
	next, gap := time.Now(), time.Duration(a.GapMS)*time.Millisecond
	for i := range a.MaxTokens {
		if i == 0 && a.FirstMS > 0 || i > 0 && gap > 0 {
			select {
			case <-timer.C:
			case <-r.Context().Done():
				return false
			}
		}
		io.WriteString(w, event)
		http.NewResponseController(w).Flush()
		next = next.Add(gap)
		timer.Reset(time.Until(next))
	}
	io.WriteString(w, done)
	return true
}
