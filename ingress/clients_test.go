package ingress

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

func clientOf(t *testing.T, h2c bool) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!h2c)
	protocols.SetUnencryptedHTTP2(h2c)
	transport := &http.Transport{Protocols: protocols, DisableCompression: true, MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// reply is an answer read to its end.
type reply struct {
	*http.Response
	body string
	err  error // that broke the answer
}

// post sends a body to a path as JSON; headers are names and values in turn.
func (f *front) post(path, body string, headers ...string) reply {
	f.t.Helper()
	return f.do(f.t.Context(), f.h1, "POST", path, strings.NewReader(body), headers...)
}

func (f *front) chat(model string) reply {
	f.t.Helper()
	return f.post("/v1/chat/completions", chat(model))
}

func chat(model string) string {
	return `{"model":"` + model + `","messages":[{"role":"user","content":"Hi"}]}`
}

func (f *front) get(path string) reply {
	f.t.Helper()
	return f.do(f.t.Context(), f.h1, "GET", path, nil)
}

func (f *front) url(path string) string {
	if f.certificate.Load() != nil {
		return "https://" + f.Address() + path
	}
	return "http://" + f.Address() + path
}

func (f *front) do(ctx context.Context, client *http.Client, method, path string, body io.Reader, headers ...string) reply {
	f.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, f.url(path), body)
	if err != nil {
		f.t.Fatal(err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return reply{&http.Response{}, "", err}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return reply{resp, string(text), err}
}

// stream is the body of an answer that is read bit by bit.
type stream struct {
	io.ReadCloser
	t *testing.T
}

// stream asks for an answer and returns when its first byte is there.
func (f *front) stream(ctx context.Context, client *http.Client) stream {
	f.t.Helper()
	req, err := http.NewRequestWithContext(ctx, "POST", f.url("/v1/chat/completions"), strings.NewReader(chat("m")))
	if err != nil {
		f.t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { resp.Body.Close() })
	return stream{resp.Body, f.t}
}

// read reads exactly n bytes.
func (s stream) read(n int) string {
	s.t.Helper()
	p := make([]byte, n)
	if _, err := io.ReadFull(s, p); err != nil {
		s.t.Fatalf("read %q and %v", p, err)
	}
	return string(p)
}

// background makes a request whose answer comes later.
func (f *front) background(request func() reply) <-chan reply {
	done := make(chan reply, 1)
	go func() { done <- request() }()
	return done
}

// raw sends bytes over a connection of its own.
func (f *front) raw(text string) (net.Conn, *bufio.Reader) {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.Address())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, text); err != nil {
		f.t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

// readReply reads an answer off a raw connection.
func readReply(t *testing.T, r *bufio.Reader, method string) reply {
	t.Helper()
	resp, err := http.ReadResponse(r, &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return reply{resp, string(text), err}
}
