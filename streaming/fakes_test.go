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
const brokenEvent = `data: {"error":{"message":"The model server broke off before the response was complete.",` +
	`"type":"server_error","param":null,"code":"upstream_broken"}}` + "\n\n"

var errReset = errors.New("connection reset by peer")

// A script is an upstream body that returns the given pieces and then end, or io.EOF.
type script struct {
	pieces  []string
	end     error
	endsNow bool   // end is returned with the last piece
	before  func() // called before each read
	widest  int    // the largest buffer passed to Read
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

// response returns a response of unknown length.
func response(contentType string, body io.ReadCloser) *http.Response {
	return &http.Response{
		StatusCode:    http.StatusOK,
		Header:        http.Header{"Content-Type": {contentType}},
		ContentLength: -1,
		Body:          body,
	}
}

// events returns an event stream.
func events(body io.ReadCloser) *http.Response {
	return response("text/event-stream; charset=utf-8", body)
}

// A recorder is a client that records what is written. It supports no deadlines.
type recorder struct {
	header  http.Header
	status  int
	got     []byte
	flushed int // bytes of got that have been flushed
	writes  int
	flushes int
	fail    error // of every further write
}

func newRecorder() *recorder { return &recorder{header: http.Header{}} }

func (p *recorder) Header() http.Header    { return p.header }
func (p *recorder) WriteHeader(status int) { p.status = status }
func (p *recorder) Write(b []byte) (int, error) {
	if p.fail != nil {
		return 0, p.fail
	}
	p.writes++
	p.got = append(p.got, b...)
	return len(b), nil
}

func (p *recorder) FlushError() error {
	p.flushes++
	p.flushed = len(p.got)
	return p.fail
}

// A network connects clients and one server by pipes, so that both can be in a synctest bubble.
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

// serve starts a server and returns a client and the network between them, for HTTP/1.1 or for h2c
// only.
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

// overHTTP1AndH2 runs a test over HTTP/1.1 and over h2c.
func overHTTP1AndH2(t *testing.T, test func(t *testing.T, h2 bool)) {
	t.Run("HTTP/1.1", func(t *testing.T) { test(t, false) })
	t.Run("h2c", func(t *testing.T) { test(t, true) })
}

// chunk is a typical event.
const chunk = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1728365454,"model":"m",` +
	`"choices":[{"index":0,"delta":{"content":" learning"},"logprobs":null,"finish_reason":null}]}` + "\n\n"

// longEvent returns an event of more than n bytes.
func longEvent(n int) string { return "data: " + strings.Repeat("x", n) + "\n\n" }
