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

// witness is an engine that knows how many requests its agent lets in at once: all whose connection the agent holds.
//
// An engine's own count will not do. It learns late that a request was given up, when the next one may be there already; the
// kernel has known it since the connection was closed, and that is before the slot was given on.
type witness struct {
	*simulated.Engine
	url string

	mu      sync.Mutex
	held    map[net.Conn]struct{} // that have a request without its answer
	highest int
}

type connKey struct{}

// witnesses starts n engines.
func witnesses(t *testing.T, n int) (all []*witness) {
	for range n {
		w := &witness{
			Engine: simulated.New(simulated.Config{PrefillTokensPerSecond: 1e6, DecodeStep: time.Millisecond, DecodeStepPerRequest: time.Microsecond}),
			held:   make(map[net.Conn]struct{}),
		}
		t.Cleanup(w.Close)
		s := httptest.NewUnstartedServer(w.watch(w.Handler()))
		s.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
		s.Start()
		t.Cleanup(s.Close)
		w.url = s.URL
		all = append(all, w)
	}
	return all
}

func (w *witness) watch(engine http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			conn := r.Context().Value(connKey{}).(net.Conn)
			w.enter(conn)
			defer w.leave(conn)
			rw = &ending{rw, func() { w.leave(conn) }}
		}
		engine.ServeHTTP(rw, r)
	})
}

func (w *witness) enter(conn net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for other := range w.held {
		if hungUp(other) {
			delete(w.held, other)
		}
	}
	w.held[conn] = struct{}{}
	w.highest = max(w.highest, len(w.held))
}

func (w *witness) leave(conn net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.held, conn)
}

// most is how many requests there were at once.
func (w *witness) most() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.highest
}

// ending tells of the write that completes an answer, before it is made.
type ending struct {
	http.ResponseWriter
	ends func()
}

func (e *ending) Unwrap() http.ResponseWriter { return e.ResponseWriter }

func (e *ending) Write(p []byte) (int, error) {
	if !strings.HasPrefix(e.Header().Get("Content-Type"), "text/event-stream") || bytes.HasSuffix(p, []byte("data: [DONE]\n\n")) {
		e.ends()
	}
	return e.ResponseWriter.Write(p)
}

// hungUp tells whether the peer of a connection has closed it.
func hungUp(c net.Conn) (gone bool) {
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
