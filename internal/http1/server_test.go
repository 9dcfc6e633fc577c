package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func echoHandler(_ *testServer, w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	w.Write(body)
}

func (s *testServer) http1Server() *Server { return s.server.(*Server) }

func TestServerTimeoutsCloseWaitingConnections(t *testing.T) {
	hs := netHTTPServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { writeStrings(w, "ok") }))
	hs.ReadHeaderTimeout, hs.IdleTimeout = 2*time.Second, 2*time.Second // a busy machine must not take so long for a header
	s := &testServer{server: NewServer(hs)}
	s.listen(t)
	begun := time.Now()
	conns := make(map[string]net.Conn)
	for name, input := range map[string]string{"silent": "", "within a header": "GET / HT", "idle": "GET / HTTP/1.1\r\nHost: h\r\n\r\n"} {
		conns[name] = s.dial(t)
		io.WriteString(conns[name], input)
	}
	for name, c := range conns {
		raw, err := io.ReadAll(c)
		if took := time.Since(begun); err != nil || took < 2*time.Second {
			t.Errorf("%s: ended after %v: %v", name, took, err)
		}
		if name == "idle" != bytes.HasSuffix(raw, []byte("ok")) {
			t.Errorf("%s: got %q", name, raw)
		}
	}
}

// A failingListener fails temporarily, as accept does without descriptors, and later for good.
type failingListener struct {
	net.Listener
	failures atomic.Int32
}

func (l *failingListener) Accept() (net.Conn, error) {
	if l.failures.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

func TestServerAcceptRetriesAfterTemporaryError(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &failingListener{Listener: inner}
	l.failures.Store(3)
	s := NewServer(netHTTPServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { writeStrings(w, "ok") })))
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(l) }()
	resp, err := http.Get("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	inner.Close()
	if err := receiveFrom(t, failed); err == nil || errors.Is(err, http.ErrServerClosed) {
		t.Errorf("a listener that fails for good: %v", err)
	}
	s.Close()
}

// What is not simple is served by net/http, with all bytes that have arrived.
func TestServerServesRealClients(t *testing.T) {
	s := serve(t, echoHandler)
	for name, set := range map[string]func(*http.Protocols){
		"HTTP/1.1": func(p *http.Protocols) { p.SetHTTP1(true) },
		"h2c":      func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
	} {
		tr := &http.Transport{Protocols: new(http.Protocols), ExpectContinueTimeout: 10 * time.Second}
		set(tr.Protocols)
		client := &http.Client{Transport: tr}
		for range 3 {
			for _, body := range []io.Reader{strings.NewReader(long), io.MultiReader(strings.NewReader(long)), strings.NewReader(long)} {
				req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+s.address, body)
				if err != nil {
					t.Fatal(err)
				}
				if _, seeker := body.(*strings.Reader); !seeker {
					req.Header.Set("Expect", "100-continue")
				}
				resp, err := client.Do(req)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				got, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if string(got) != long || err != nil {
					t.Errorf("%s: got %d bytes, %v", name, len(got), err)
				}
			}
		}
		tr.CloseIdleConnections()
	}
}

// A handler passes on values of other servers. No value may begin a line of its own.
func TestServerHeaderCannotSplitResponse(t *testing.T) {
	const value = "a\r\nX-Evil: 1\r\n\r\nHTTP/1.1 200 OK\r\n\nX-Evil: 2\rX-Evil: 3"
	for _, status := range []int{200, 204, 304, 500} {
		for _, name := range []string{"X-A", "Connection", "Content-Type", "Content-Encoding", "Content-Length", "Transfer-Encoding", "Date", "Trailer", "X-T",
			http.TrailerPrefix + "X-U", "X-Evil: 4\r\nX-B"} {
			s := serve(t, func(_ *testServer, w http.ResponseWriter, _ *http.Request) {
				w.Header()["Trailer"] = []string{"X-T"}
				w.Header()[name] = []string{value, value}
				w.WriteHeader(http.StatusEarlyHints)
				w.WriteHeader(status)
				writeStrings(w, "body")
			})
			c := s.dial(t)
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
			raw, err := io.ReadAll(c)
			if err != nil || !bytes.HasPrefix(raw, []byte("HTTP/1.1 103 ")) {
				t.Errorf("%d, %s: got %q, %v", status, name, raw, err)
			}
			for line := range strings.FieldsFuncSeq(string(raw), func(r rune) bool { return r == '\r' || r == '\n' }) {
				if strings.HasPrefix(line, "X-Evil") || strings.HasPrefix(line, "HTTP/1.1 200") && status != 200 {
					t.Errorf("%d, %s: the response was split at %q", status, name, line)
				}
			}
		}
	}
}

// Wherever reads and writes are split, the bytes are unchanged.
func TestServerBytesUnchangedAtEverySplit(t *testing.T) {
	s := serve(t, func(_ *testServer, w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		p := make([]byte, 1+rand.IntN(9000))
		for {
			n, err := r.Body.Read(p[:1+rand.IntN(len(p))])
			w.Write(p[:n])
			if rand.IntN(3) == 0 {
				flushWriter(w)
			}
			if err != nil {
				if err != io.EOF {
					t.Error(err)
				}
				return
			}
		}
	})
	var inputs strings.Builder
	var want []string
	for range 50 {
		body := long[:rand.IntN(20_000)]
		want = append(want, body)
		inputs.WriteString("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: " + itoa(len(body)) + "\r\n\r\n" + body)
	}
	c := s.dial(t)
	var sending sync.WaitGroup
	sending.Go(func() {
		for rest := inputs.String(); rest != ""; {
			n := min(len(rest), 1+rand.IntN(5000))
			io.WriteString(c, rest[:n])
			rest = rest[n:]
		}
		c.CloseWrite()
	})
	got := readResponses(c)
	sending.Wait()
	if len(got) != len(want) {
		t.Fatalf("%d responses to %d requests", len(got), len(want))
	}
	for i := range want {
		if got[i].Body != want[i] || got[i].Err != "" {
			t.Errorf("response %d is altered: %d bytes, not %d; %s", i, len(got[i].Body), len(want[i]), got[i].Err)
		}
	}
}

// The kernel has room for only a part of a write.
func TestServerWritesUnchangedToSlowReader(t *testing.T) {
	for _, size := range []int{3000, 5000} { // within a page, and not
		const pieces = 3000
		progress := make(chan struct{}, pieces)
		s := serve(t, func(_ *testServer, w http.ResponseWriter, _ *http.Request) {
			w.(*responseWriter).conn.SetWriteBuffer(1)
			for i := range pieces {
				writeStrings(w, long[i:i+size])
				flushWriter(w)
				progress <- struct{}{}
			}
		})
		c := s.dial(t)
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
		for stuck := false; !stuck; {
			select {
			case <-progress:
			case <-time.After(100 * time.Millisecond):
				stuck = true
			}
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		p := make([]byte, size)
		for i := range pieces {
			if n, err := io.ReadFull(resp.Body, p); err != nil || string(p) != long[i:i+size] {
				t.Fatalf("piece %d of %d bytes is altered: %d bytes, %v", i, size, n, err)
			}
		}
		if n, err := io.Copy(io.Discard, resp.Body); n > 0 || err != nil {
			t.Errorf("%d bytes more, %v", n, err)
		}
	}
}

// A response without length or chunks ends with its connection, so an aborted one ends with a
// reset.
func TestServerAbortResetsCloseDelimitedResponse(t *testing.T) {
	for coding, want := range map[string]error{"identity": syscall.ECONNRESET, "chunked": nil} {
		s := serve(t, func(_ *testServer, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Transfer-Encoding", coding)
			writeStrings(w, "half")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		})
		c := s.dial(t)
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
		raw, err := io.ReadAll(c)
		if !bytes.Contains(raw, []byte("half")) || bytes.HasSuffix(raw, []byte("0\r\n\r\n")) || !errors.Is(err, want) {
			t.Errorf("%s: got %q, %v", coding, raw, err)
		}
	}
}
