package e2e

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth/llmserver/simulated"
)

// countingEngine is an engine that records the maximum number of concurrent requests of its agent.
// A request counts while the agent keeps the connection open.
//
// The engine's own count is not suitable, because the engine notices a disconnect late, possibly
// after the arrival of the next request. The kernel knows about the disconnect as soon as the
// connection is closed, which is before the slot is handed over.
type countingEngine struct {
	*simulated.Engine
	url string

	mu        sync.Mutex
	active    map[net.Conn]struct{} // connections with a request and without a complete response
	maxActive int
}

type connKey struct{}

// startCountingEngines starts n engines.
func startCountingEngines(t *testing.T, n int) (all []*countingEngine) {
	for range n {
		w := &countingEngine{
			Engine: simulated.New(simulated.Config{PrefillTokensPerSecond: 1e6, DecodeStep: time.Millisecond, DecodeStepPerRequest: time.Microsecond}),
			active: make(map[net.Conn]struct{}),
		}
		t.Cleanup(w.Close)
		s := httptest.NewUnstartedServer(w.wrap(w.Handler()))
		s.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
		s.Start()
		t.Cleanup(s.Close)
		w.url = s.URL
		all = append(all, w)
	}
	return all
}

// wrap returns a handler that counts the requests to the engine's handler.
func (w *countingEngine) wrap(engine http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			conn := r.Context().Value(connKey{}).(net.Conn)
			w.addRequest(conn)
			defer w.removeRequest(conn)
			rw = &lastWriteWriter{rw, func() { w.removeRequest(conn) }}
		}
		engine.ServeHTTP(rw, r)
	})
}

func (w *countingEngine) addRequest(conn net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for other := range w.active {
		if peerClosed(other) {
			delete(w.active, other)
		}
	}
	w.active[conn] = struct{}{}
	w.maxActive = max(w.maxActive, len(w.active))
}

func (w *countingEngine) removeRequest(conn net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.active, conn)
}

// maxConcurrent returns the maximum number of concurrent requests so far.
func (w *countingEngine) maxConcurrent() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.maxActive
}

// lastWriteWriter calls onLastWrite before the write that completes a response.
type lastWriteWriter struct {
	http.ResponseWriter
	onLastWrite func()
}

func (e *lastWriteWriter) Unwrap() http.ResponseWriter { return e.ResponseWriter }

func (e *lastWriteWriter) Write(p []byte) (int, error) {
	if !strings.HasPrefix(e.Header().Get("Content-Type"), "text/event-stream") || bytes.HasSuffix(p, []byte("data: [DONE]\n\n")) {
		e.onLastWrite()
	}
	return e.ResponseWriter.Write(p)
}

// peerClosed reports whether the peer has closed the connection.
func peerClosed(c net.Conn) (gone bool) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		gone = n == 0 && err == nil || err != nil && err != syscall.EAGAIN
	})
	return gone || err != nil
}
