package http1

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// A stand is a server of either kind, and what its handlers say that they have seen.
type testServer struct {
	address string
	server  interface {
		Serve(net.Listener) error
		Close() error
	}

	mu   sync.Mutex
	seen []string
}

func (s *testServer) record(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, fmt.Sprintf(format, args...))
}

// take returns what has been noted, once.
func (s *testServer) takeRecords() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen
	s.seen = nil
	return seen
}

// quiet takes what servers log of handlers that misbehave on purpose.
var discardLog = log.New(io.Discard, "", 0)

func netHTTPServer(h http.Handler) *http.Server {
	hs := &http.Server{Handler: h, ErrorLog: discardLog, ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute, Protocols: new(http.Protocols)}
	hs.Protocols.SetHTTP1(true)
	hs.Protocols.SetUnencryptedHTTP2(true)
	return hs
}

// serve serves h by this package until the test ends.
func serve(t testing.TB, h func(*testServer, http.ResponseWriter, *http.Request)) *testServer {
	t.Helper()
	s := new(testServer)
	s.server = NewServer(netHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h(s, w, r) })))
	return s.listen(t)
}

// serveByOracle serves h by net/http.
func serveNetHTTP(t testing.TB, h func(*testServer, http.ResponseWriter, *http.Request)) *testServer {
	t.Helper()
	s := new(testServer)
	s.server = netHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h(s, w, r) }))
	return s.listen(t)
}

func (s *testServer) listen(t testing.TB) *testServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = l.Addr().String()
	var serving sync.WaitGroup
	serving.Go(func() { s.server.Serve(l) })
	t.Cleanup(func() {
		s.server.Close()
		serving.Wait()
	})
	return s
}

func (s *testServer) dial(t testing.TB) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(30 * time.Second))
	return c.(*net.TCPConn)
}

// an answer is what a client understands of one.
type response struct {
	Status  string
	Close   bool
	Length  int64
	Coding  []string
	Header  http.Header
	Body    string
	Trailer http.Header
	Err     string
}

// say sends input, in pieces, ends its half of the connection and reads until the server has done so too. A server that
// ends a connection on which something lies unread resets it, and what it had answered may be lost on the way: cut then.
func (s *testServer) exchange(t testing.TB, pieces ...string) (answers []response, cut bool) {
	t.Helper()
	c := s.dial(t)
	defer c.Close()
	for _, piece := range pieces {
		if _, err := io.WriteString(c, piece); err != nil {
			break // the server has heard enough
		}
	}
	c.CloseWrite()
	raw, err := io.ReadAll(c)
	return parseResponses(raw), err != nil
}

func parseResponses(raw []byte) (all []response) {
	r := bufio.NewReader(bytes.NewReader(raw))
	for {
		if _, err := r.Peek(1); err != nil {
			return all
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return append(all, response{Err: err.Error()})
		}
		body, err := io.ReadAll(resp.Body)
		a := response{resp.Status, resp.Close, resp.ContentLength, resp.TransferEncoding, resp.Header, string(body), resp.Trailer, ""}
		if err != nil {
			a.Err = err.Error()
		}
		if date := a.Header["Date"]; len(date) == 1 && strings.HasSuffix(date[0], "GMT") && !strings.Contains(date[0], "1999") {
			a.Header["Date"] = []string{"now"}
		}
		all = append(all, a)
		if err != nil {
			return all
		}
	}
}

func receiveFrom[T any](t testing.TB, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(20 * time.Second):
		t.Fatal("what is waited for does not come")
	}
	return v
}
