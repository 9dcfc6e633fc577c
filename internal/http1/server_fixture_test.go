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

// A testServer is a Server or an http.Server, with a record of what its handlers have seen.
type testServer struct {
	address string
	server  interface {
		Serve(net.Listener) error
		Close() error
	}

	mu   sync.Mutex
	seen []string // the record
}

func (s *testServer) record(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, fmt.Sprintf(format, args...))
}

// takeRecords returns the record and clears it.
func (s *testServer) takeRecords() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen
	s.seen = nil
	return seen
}

// discardLog is for servers whose handlers misbehave on purpose.
var discardLog = log.New(io.Discard, "", 0)

// netHTTPServer returns an http.Server for h. The test waits for its connections to end: net/http's
// Close does not wait for those that linger.
func netHTTPServer(t testing.TB, h http.Handler) *http.Server {
	hs := &http.Server{Handler: h, ErrorLog: discardLog, ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute, Protocols: new(http.Protocols)}
	hs.Protocols.SetHTTP1(true)
	hs.Protocols.SetUnencryptedHTTP2(true)
	var conns sync.WaitGroup
	hs.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			conns.Add(1)
		case http.StateClosed, http.StateHijacked:
			conns.Done()
		}
	}
	t.Cleanup(conns.Wait)
	return hs
}

// serve serves h with a Server until the test ends.
func serve(t testing.TB, h func(*testServer, http.ResponseWriter, *http.Request)) *testServer {
	t.Helper()
	s := new(testServer)
	s.server = NewServer(netHTTPServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h(s, w, r) })))
	return s.listen(t)
}

// serveNetHTTP serves h with an http.Server until the test ends.
func serveNetHTTP(t testing.TB, h func(*testServer, http.ResponseWriter, *http.Request)) *testServer {
	t.Helper()
	s := new(testServer)
	s.server = netHTTPServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h(s, w, r) }))
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

// A response is what a client reads of a response.
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

// exchange sends the pieces, half-closes the connection and reads to its end. reset reports that
// the server closed the connection with data unread, which resets it and may lose a part of the
// responses.
func (s *testServer) exchange(t testing.TB, pieces ...string) (responses []response, reset bool) {
	t.Helper()
	c := s.dial(t)
	defer c.Close()
	for _, piece := range pieces {
		if _, err := io.WriteString(c, piece); err != nil {
			break // the server has closed the connection
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
		t.Fatal("timed out")
	}
	return v
}
