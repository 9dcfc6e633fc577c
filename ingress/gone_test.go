package ingress

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// leaver sends a chat request and returns a function that disconnects the client.
type leaver func(f *front) (leave func())

var leavers = map[string]leaver{
	"HTTP/1.1": func(f *front) func() { return f.leaving(f.h1) },
	"h2c":      func(f *front) func() { return f.leaving(f.h2) },
	"half-closed": func(f *front) func() {
		body := chat("m")
		conn, _ := f.raw("POST /v1/chat/completions HTTP/1.1\r\nHost: berth\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
		return func() { conn.(*net.TCPConn).CloseWrite() }
	},
}

func (f *front) leaving(client *http.Client) (leave func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	done := f.background(func() reply {
		return f.do(ctx, client, "POST", "/v1/chat/completions", strings.NewReader(chat("m")))
	})
	return func() {
		cancel()
		receive(f.t, done)
	}
}

// wantAbort waits until all resources are released and one abort is counted in the phase.
func (f *front) wantAbort(model, phase string) {
	f.t.Helper()
	f.idle()
	series := fmt.Sprintf(`berth_aborts_total{model=%q,phase=%q}`, model, phase)
	f.eventually("an abort is counted", func() bool {
		n, _ := f.series(series)
		return n == 1
	})
	f.eventually("the memory is released", func() bool { return f.budget.Held() == 0 })
	if n, ok := f.series(fmt.Sprintf(`berth_upstream_errors_total{model=%q,phase=%q}`, model, phase)); ok && n > 0 {
		f.t.Error("the disconnect counts as an error of the replica")
	}
}

func (f *front) wantStatus(model, status string) {
	f.t.Helper()
	series := fmt.Sprintf(`berth_requests_total{model=%q,route="/chat/completions",status=%q}`, model, status)
	f.eventually("the request is counted with status "+status, func() bool {
		n, _ := f.series(series)
		return n == 1
	})
}

func TestDisconnectDuringUpload(t *testing.T) {
	for name, h2c := range map[string]bool{"HTTP/1.1": false, "h2c": true} {
		t.Run(name, func(t *testing.T) {
			f := serve(t, modelOn("m", refusing(1)))
			client := f.h1
			if h2c {
				client = f.h2
			}
			ctx, leave := context.WithCancel(t.Context())
			body, upload := io.Pipe()
			done := f.background(func() reply { return f.do(ctx, client, "POST", "/v1/chat/completions", body) })
			io.WriteString(upload, `{"model":`)
			f.eventually("the body is being read", func() bool { return f.budget.Held() > 0 })
			leave()
			upload.CloseWithError(context.Canceled) // the client's transport waits for its body
			receive(t, done)
			f.wantAbort("", "body")
			f.wantStatus("", "499")
		})
	}
}

func TestDisconnectInQueue(t *testing.T) {
	for name, send := range leavers {
		t.Run(name, func(t *testing.T) {
			g := gated(t)
			f := serve(t, narrow(modelOn("m", g.url)))
			first := f.background(func() reply { return f.chat("m") })
			receive(t, g.arrived)
			leave := send(f)
			f.waiting("m", 1)
			leave()
			f.waiting("m", 0)
			g.open <- struct{}{}
			if r := receive(t, first); r.body != "ok" {
				t.Errorf("the served request got %d %s", r.StatusCode, r.body)
			}
			f.wantAbort("m", "waiting")
			f.wantStatus("m", "499")
			if len(g.arrived) > 0 {
				t.Error("the aborted request reached the replica")
			}
		})
	}
}

// A TLS replica that never sends its hello keeps requests connecting.
func TestDisconnectDuringConnect(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for name, send := range leavers {
		t.Run(name, func(t *testing.T) {
			f := serve(t, modelOn("m", "https://"+listener.Addr().String()))
			leave := send(f)
			conn, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			leave()
			f.wantAbort("m", "first_byte")
			f.wantStatus("m", "499")
			if !f.registry.allReplicas()[0].Available() {
				t.Error("the disconnect took the replica down")
			}
		})
	}
}

func TestDisconnectBeforeFirstByte(t *testing.T) {
	for name, send := range leavers {
		t.Run(name, func(t *testing.T) {
			g := gated(t)
			f := serve(t, modelOn("m", g.url))
			leave := send(f)
			receive(t, g.arrived)
			leave()
			receive(t, g.left)
			f.wantAbort("m", "first_byte")
			f.wantStatus("m", "499")
		})
	}
}

func TestDisconnectDuringResponse(t *testing.T) {
	const event = "data: {}\n\n"
	streamOver := func(f *front, client *http.Client) (leave func()) {
		ctx, cancel := context.WithCancel(t.Context())
		f.stream(ctx, client).read(len(event))
		return cancel
	}
	for name, begin := range map[string]leaver{
		"HTTP/1.1": func(f *front) func() { return streamOver(f, f.h1) },
		"h2c":      func(f *front) func() { return streamOver(f, f.h2) },
		"half-closed": func(f *front) func() {
			body := chat("m")
			conn, answer := f.raw("POST /v1/chat/completions HTTP/1.1\r\nHost: berth\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
			if r, err := http.ReadResponse(answer, nil); err != nil || (stream{r.Body, t}).read(len(event)) != event {
				t.Fatalf("got %v and %v", r, err)
			}
			return func() { conn.(*net.TCPConn).CloseWrite() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			left := make(chan struct{})
			f := serve(t, modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "text/event-stream")
				io.WriteString(w, event)
				w.(http.Flusher).Flush()
				<-r.Context().Done()
				close(left)
			})))
			leave := begin(f)
			leave()
			receive(t, left)
			f.wantAbort("m", "streaming")
			f.wantStatus("m", "200")
		})
	}
}

// A client that has closed its sending half may still read: its connection must not look like a
// complete response.
func TestDisconnectHalfClosedClient(t *testing.T) {
	g := gated(t)
	f := serve(t, modelOn("m", g.url))
	body := chat("m")
	conn, answer := f.raw("POST /v1/chat/completions HTTP/1.1\r\nHost: berth\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
	receive(t, g.arrived)
	conn.(*net.TCPConn).CloseWrite()
	receive(t, g.left)
	if text, err := io.ReadAll(answer); len(text) > 0 || err != nil {
		t.Errorf("it read %q and %v", text, err)
	}
}
