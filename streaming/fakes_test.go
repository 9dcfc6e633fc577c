package streaming

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// brokenEvent is the event that closes a stream whose upstream broke, byte for byte.
const brokenEvent = `data: {"error":{"message":"The model server broke off before the answer was complete.",` +
	`"type":"server_error","param":null,"code":"upstream_broken"}}` + "\n\n"

var errReset = errors.New("connection reset by peer")

// script is an upstream body that comes in the given pieces and then ends with end, or cleanly.
type script struct {
	pieces  []string
	end     error
	endsNow bool   // end comes along with the last piece
	before  func() // called before each read
	widest  int    // the largest buffer it was asked to fill
}

func (s *script) Read(p []byte) (int, error) {
	if s.before != nil {
		s.before()
	}
	s.widest = max(s.widest, len(p))
	if len(s.pieces) == 0 {
		return 0, s.ending()
	}
	n := copy(p, s.pieces[0])
	if s.pieces[0] = s.pieces[0][n:]; s.pieces[0] == "" {
		s.pieces = s.pieces[1:]
	}
	if s.endsNow && len(s.pieces) == 0 {
		return n, s.ending()
	}
	return n, nil
}

func (s *script) ending() error {
	if s.end != nil {
		return s.end
	}
	return io.EOF
}

func (s *script) Close() error { return nil }

// answer is a response of unknown length.
func answer(contentType string, body io.ReadCloser) *http.Response {
	return &http.Response{
		StatusCode:    http.StatusOK,
		Header:        http.Header{"Content-Type": {contentType}},
		ContentLength: -1,
		Body:          body,
	}
}

func events(body io.ReadCloser) *http.Response {
	return answer("text/event-stream; charset=utf-8", body)
}

// page is a client that writes down what it gets. It has no deadlines.
type page struct {
	header  http.Header
	status  int
	got     []byte
	flushed int // how much of got has been flushed
	writes  int
	flushes int
	fail    error // of every write from now on
}

func newPage() *page { return &page{header: http.Header{}} }

func (p *page) Header() http.Header    { return p.header }
func (p *page) WriteHeader(status int) { p.status = status }
func (p *page) Write(b []byte) (int, error) {
	if p.fail != nil {
		return 0, p.fail
	}
	p.writes++
	p.got = append(p.got, b...)
	return len(b), nil
}

func (p *page) FlushError() error {
	p.flushes++
	p.flushed = len(p.got)
	return p.fail
}

// network joins clients and one server by pipes, so that both can live in a synctest bubble.
type network struct {
	conns chan net.Conn
	once  sync.Once
	down  chan struct{}
}

func (n *network) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case <-n.down:
		return nil, net.ErrClosed
	}
}

func (n *network) Close() error {
	n.once.Do(func() { close(n.down) })
	return nil
}

func (n *network) Addr() net.Addr { return &net.TCPAddr{} }

func (n *network) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	n.conns <- theirs
	return ours, nil
}

// serve starts a server and returns a client of it and the network between them. Both speak HTTP/1.1, or h2c only.
func serve(t *testing.T, h2 bool, handler http.HandlerFunc) (*http.Client, *network) {
	t.Helper()
	n := &network{conns: make(chan net.Conn), down: make(chan struct{})}
	var protocols http.Protocols
	protocols.SetHTTP1(!h2)
	protocols.SetUnencryptedHTTP2(h2)
	server := &http.Server{Handler: handler, Protocols: &protocols}
	transport := &http.Transport{DialContext: n.dial, Protocols: &protocols, DisableCompression: true}
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(n) })
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
		running.Wait()
	})
	return &http.Client{Transport: transport}, n
}

// overBoth runs a test over HTTP/1.1 and over h2c.
func overBoth(t *testing.T, test func(t *testing.T, h2 bool)) {
	t.Run("HTTP/1.1", func(t *testing.T) { test(t, false) })
	t.Run("h2c", func(t *testing.T) { test(t, true) })
}

// chunk is one ordinary event.
const chunk = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1728365454,"model":"m",` +
	`"choices":[{"index":0,"delta":{"content":" learning"},"logprobs":null,"finish_reason":null}]}` + "\n\n"

// longEvent is an event of more than n bytes.
func longEvent(n int) string { return "data: " + strings.Repeat("x", n) + "\n\n" }
