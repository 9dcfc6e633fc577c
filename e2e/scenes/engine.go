package scenes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	events    = 8  // of a stream
	slowdown  = 10 // of Slow
	modelID   = "demo"
	listening = 5 * time.Second // longest wait for an address that was in use before
)

// An Engine is an OpenAI server in this process that takes 100 to 300 ms for a response, without a
// limit of concurrent requests, and has a fault on demand. All methods are safe for concurrent use.
type Engine struct {
	name    string
	address string
	log     *arrivals

	mu     sync.Mutex // guards what follows
	server *http.Server
	fault  Fault
	over   chan struct{} // closed when the fault ends
}

// StartEngine starts an engine on a free loopback port. Its name is part of its responses.
func StartEngine(name string) (*Engine, error) {
	return startEngine(name, FreeLoopback(), new(arrivals))
}

func startEngine(name, address string, log *arrivals) (*Engine, error) {
	e := &Engine{name: name, address: address, log: log, over: make(chan struct{})}
	return e, e.listen()
}

// loopbacks numbers the addresses of FreeLoopback.
var loopbacks atomic.Int64

// FreeLoopback returns an address with port 0 that no client connects from and no other server
// listens at, where the system has more than one loopback address. So a port that is free stays so
// while a process is started, or started again.
func FreeLoopback() string {
	address := fmt.Sprintf("127.%d.%d.%d:0", 64+os.Getpid()/250%64, os.Getpid()%250, 1+loopbacks.Add(1)%250)
	l, err := net.Listen("tcp", address)
	if err != nil {
		return "127.0.0.1:0"
	}
	l.Close()
	return address
}

// listen starts serving at the engine's address, which may be in use for a moment.
func (e *Engine) listen() error {
	var l net.Listener
	var err error
	for deadline := time.Now().Add(listening); ; time.Sleep(10 * time.Millisecond) {
		if l, err = net.Listen("tcp", e.address); err == nil {
			break
		} else if time.Now().After(deadline) {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if strings.HasSuffix(e.address, ":0") {
		e.address = l.Addr().String()
	}
	e.server = &http.Server{Handler: e}
	go e.server.Serve(l)
	return nil
}

// URL returns the engine's base URL, without a path.
func (e *Engine) URL() string { return "http://" + e.address }

// Close ends the engine and all its connections.
func (e *Engine) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.server.Close()
}

// ArrivalsOf returns how often the request of a response arrived.
func (e *Engine) ArrivalsOf(r Response) (n int) {
	for _, a := range e.log.list() {
		if a.id == r.ID {
			n++
		}
	}
	return n
}

// Begin begins a fault that needs no process. It holds until the next Begin or End.
func (e *Engine) Begin(f Fault) error {
	if f.needsProcess() {
		return fmt.Errorf("%q is a fault of a process", f)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fault = f
	if f == Refused {
		go e.server.Shutdown(context.Background()) // it closes the listener at once and waits for requests
	}
	return nil
}

// End ends the fault.
func (e *Engine) End() error {
	e.mu.Lock()
	was := e.fault
	e.fault = ""
	close(e.over)
	e.over = make(chan struct{})
	e.mu.Unlock()
	if was == Refused {
		return e.listen()
	}
	return nil
}

func (e *Engine) current() (Fault, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.fault, e.over
}

var (
	requestMark = regexp.MustCompile(`\[request (\d+)\]`)
	faultMark   = regexp.MustCompile(`\[fault (\d+)\]`)
	streamField = regexp.MustCompile(`"stream": ?true`)
)

// ServeHTTP implements http.Handler.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	mark := requestMark.FindSubmatch(body)
	if r.Method != http.MethodPost || mark == nil {
		e.describe(w, r)
		return
	}
	id, _ := strconv.Atoi(string(mark[1]))
	stream := streamField.Match(body)
	defer e.log.begin(id, stream)()
	fault, over := e.current()
	if m := faultMark.FindSubmatch(body); m != nil {
		i, _ := strconv.Atoi(string(m[1]))
		fault = markable[i]
	}
	if e.fail(w, r, fault, over) {
		return
	}
	switch work := time.Duration(100+id*37%201) * time.Millisecond; {
	case strings.HasSuffix(r.URL.Path, "/responses"):
		e.writeAtOnce(w, r, work, fmt.Sprintf(`{"id":"resp_%d","object":"response","status":"completed","model":%q,"output":[{"type":"message","role":"assistant",`+
			`"content":[{"type":"output_text","text":"[engine %s]"}]}]}`, id, modelID, e.name))
	case stream:
		e.writeStream(w, r, work)
	default:
		e.writeAtOnce(w, r, work, fmt.Sprintf(`{"id":"chatcmpl-%d","object":"chat.completion","created":1,"model":%q,"choices":[{"index":0,"message":{"role":"assistant",`+
			`"content":"[engine %s]"},"finish_reason":"stop"}],"usage":{"prompt_tokens":300,"completion_tokens":8,"total_tokens":308}}`, id, modelID, e.name))
	}
}

// describe answers health checks, questions about the model and chats that are no request of a
// Client, which are not recorded.
func (e *Engine) describe(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/health", "/health_generate":
	case "/v1/chat/completions":
		writeJSON(w, http.StatusOK, `{"id":"chatcmpl-0","object":"chat.completion","created":1,"model":"`+modelID+`","choices":[{"index":0,`+
			`"message":{"role":"assistant","content":"Hello"},"finish_reason":"stop"}]}`)
	case "/v1/models":
		writeJSON(w, http.StatusOK, `{"object":"list","data":[{"id":"`+modelID+`","object":"model","owned_by":"scenes"}]}`)
	default:
		writeJSON(w, http.StatusNotFound, `{"detail":"Not Found"}`)
	}
}

func writeJSON(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	io.WriteString(w, body)
}

// fail ends the request in the way of a fault that shows before the first byte. It reports false if
// the request is to be processed, for Hang after the fault.
func (e *Engine) fail(w http.ResponseWriter, r *http.Request, fault Fault, over <-chan struct{}) bool {
	if f, ok := errorResponses[fault]; ok {
		writeJSON(w, f.status, f.body)
		return true
	}
	switch fault {
	case Break:
		panic(http.ErrAbortHandler)
	case Garbage:
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			io.WriteString(conn, "ICY 200 OK\r\nthis is no response of HTTP\r\n\r\n")
			conn.Close()
		}
		return true
	case Hang:
		select {
		case <-over:
		case <-r.Context().Done():
			return true
		}
	}
	return false
}

// errLeft is returned by work if the client has left.
var errLeft = errors.New("the client has left")

// work takes the given time, or longer while the engine is slow.
func (e *Engine) work(ctx context.Context, d time.Duration) error {
	if fault, _ := e.current(); fault == Slow {
		d *= slowdown
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return errLeft
	}
}

// writeAtOnce writes a response that is not a stream.
func (e *Engine) writeAtOnce(w http.ResponseWriter, r *http.Request, work time.Duration, body string) {
	if e.work(r.Context(), work) != nil {
		return
	}
	if fault, _ := e.current(); fault == MidStream {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		io.WriteString(w, body[:len(body)/2])
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	writeJSON(w, http.StatusOK, body)
}

// writeStream writes an event stream.
func (e *Engine) writeStream(w http.ResponseWriter, r *http.Request, work time.Duration) {
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range events {
		if e.work(r.Context(), work/events) != nil {
			return
		}
		if fault, _ := e.current(); fault == MidStream && i >= events/2 {
			panic(http.ErrAbortHandler)
		}
		content, reason := "[engine "+e.name+"]", "null"
		if i == events-1 {
			content, reason = "", `"stop"`
		}
		fmt.Fprintf(w, `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":%q,"choices":[{"index":0,"delta":{"content":%q},"finish_reason":%s}]}`+"\n\n",
			modelID, content, reason)
		http.NewResponseController(w).Flush()
	}
	io.WriteString(w, "data: [DONE]\n\n")
}
