package agent

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"berth/llmserver"
)

// The aborted ingress gets no further bytes, but the slot stays taken until the engine has closed
// its side: until then another request would exceed the engine's capacity.
func TestAgentHoldsSlotOfAbortedRequestUntilEngineCloses(t *testing.T) {
	for phase, begun := range map[string]string{
		"before the response": "",
		"in a stream":         "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\nA\r\ndata: {}\n\n\r\n",
	} {
		t.Run(phase, func(t *testing.T) {
			heard, letGo := make(chan struct{}), make(chan struct{})
			ctx, leave := context.WithCancel(t.Context())
			engine := rawEngine(t, func(c net.Conn, r *bufio.Reader) {
				io.WriteString(c, begun)
				if begun == "" {
					leave()
				}
				io.Copy(io.Discard, r)
				close(heard)
				<-letGo
			})
			s := newTestAgent(t, 1, nil, func(c *Config) { c.Engine = engine })
			if resp, err := s.sendBody(ctx, http.MethodPost, "/v1/completions", strings.NewReader("{}")); err == nil {
				resp.Body.Read(make([]byte, 1))
				leave()
				resp.Body.Close()
			}
			<-heard
			select {
			case <-s.idle():
				t.Error("the slot is free before the engine has closed its side")
			case <-time.After(20 * time.Millisecond):
			}
			close(letGo)
			<-s.idle()
		})
	}
}

// idle returns a channel that is closed when no slot is held.
func (s *testAgent) idle() <-chan struct{} {
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		for s.agent.Read().Ongoing > 0 && s.t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
	}()
	return idle
}

// rawEngine is an engine on a bare socket, played by a function that is called after a request was
// read.
func rawEngine(t *testing.T, serve func(c net.Conn, r *bufio.Reader)) llmserver.Backend {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r := bufio.NewReader(c)
				if req, err := http.ReadRequest(r); err == nil {
					io.Copy(io.Discard, req.Body)
					serve(c, r)
				}
			}()
		}
	}()
	backend, err := llmserver.DialHTTP(llmserver.Endpoint{URL: "http://" + l.Addr().String(), ConnectTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(backend.Close)
	return backend
}
