package http1

import (
	"bytes"
	"context"
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

func echo(_ *stand, w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	w.Write(body)
}

func (s *stand) front() *Server { return s.server.(*Server) }

func TestShutdownEndsIdleConnectionsAndWaitsForRequests(t *testing.T) {
	arrived, proceed := make(chan struct{}), make(chan struct{})
	s := serve(t, func(_ *stand, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/begun" {
			write(w, "begun")
			flush(w)
		}
		if r.URL.Path != "/quick" {
			arrived <- struct{}{}
			<-proceed
		}
		write(w, "done")
	})
	fresh, used, within := s.dial(t), s.dial(t), s.dial(t)
	busy, begun, other := s.dial(t), s.dial(t), s.dial(t)
	io.WriteString(used, "GET /quick HTTP/1.1\r\nHost: h\r\n\r\n")
	io.ReadFull(used, make([]byte, 100))
	io.WriteString(within, "GET /within HTTP/1.1\r\nHo")
	io.WriteString(busy, "GET /busy HTTP/1.1\r\nHost: h\r\n\r\n")
	receive(t, arrived)
	io.WriteString(begun, "GET /begun HTTP/1.1\r\nHost: h\r\n\r\n")
	receive(t, arrived)
	io.WriteString(other, "POST /other HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
	receive(t, arrived)
	over := make(chan error, 1)
	go func() { over <- s.front().Shutdown(t.Context()) }()
	for _, c := range []net.Conn{fresh, used, within} {
		if rest, err := io.ReadAll(c); err != nil || strings.Contains(string(rest), "HTTP") {
			t.Errorf("a connection without a request got %q, %v", rest, err)
		}
	}
	if _, err := net.Dial("tcp", s.address); err == nil {
		t.Error("a connection is accepted")
	}
	select {
	case err := <-over:
		t.Errorf("over before the requests are: %v", err)
	default:
	}
	for range 3 {
		proceed <- struct{}{}
	}
	for i, c := range []net.Conn{busy, begun, other} {
		answers := understandOf(c)
		if len(answers) != 1 || answers[0].Err != "" || !strings.HasSuffix(answers[0].Body, "done") || i == 0 && !answers[0].Close {
			t.Errorf("request %d got %s", i, text(answers))
		}
	}
	if err := receive(t, over); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

func TestShutdownWaitsNoLongerThanItMay(t *testing.T) {
	arrived := make(chan struct{})
	s := serve(t, func(_ *stand, w http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	})
	c := s.dial(t)
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	receive(t, arrived)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.front().Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	s.server.Close() // which cuts it
	if answers := understandOf(c); len(answers) != 0 {
		t.Errorf("got %s", text(answers))
	}
	if err := s.front().Shutdown(t.Context()); err != nil {
		t.Errorf("when all is over: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.front().Serve(l); !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("a server that was closed serves: %v", err)
	}
}

func TestConnectionsThatWaitTooLongAreClosed(t *testing.T) {
	hs := plainServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { write(w, "ok") }))
	hs.ReadHeaderTimeout, hs.IdleTimeout = 2*time.Second, 2*time.Second // a busy machine must not take that long over a head
	s := &stand{server: NewServer(hs)}
	s.listen(t)
	begun := time.Now()
	conns := make(map[string]net.Conn)
	for name, input := range map[string]string{"silent": "", "within a head": "GET / HT", "idle": "GET / HTTP/1.1\r\nHost: h\r\n\r\n"} {
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

// A listener fails as accept does when there are no descriptors left, and then for good.
type failing struct {
	net.Listener
	failures atomic.Int32
}

func (l *failing) Accept() (net.Conn, error) {
	if l.failures.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

func TestAcceptingGoesOnAfterAnErrorThatPasses(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &failing{Listener: inner}
	l.failures.Store(3)
	s := NewServer(plainServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { write(w, "ok") })))
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(l) }()
	resp, err := http.Get("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	inner.Close()
	if err := receive(t, failed); err == nil || errors.Is(err, http.ErrServerClosed) {
		t.Errorf("a listener that fails for good: %v", err)
	}
	s.Close()
}

// What is not plain is served by net/http with all bytes that came.
func TestRealClientsOfEveryKindAreServed(t *testing.T) {
	s := serve(t, echo)
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

// Law 13, from the client's side: wherever reads and writes are cut, the bytes are the same.
func TestBytesPassUnchangedWhereverTheyAreCut(t *testing.T) {
	s := serve(t, func(_ *stand, w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		p := make([]byte, 1+rand.IntN(9000))
		for {
			n, err := r.Body.Read(p[:1+rand.IntN(len(p))])
			w.Write(p[:n])
			if rand.IntN(3) == 0 {
				flush(w)
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
	got := understandOf(c)
	sending.Wait()
	if len(got) != len(want) {
		t.Fatalf("%d answers to %d requests", len(got), len(want))
	}
	for i := range want {
		if got[i].Body != want[i] || got[i].Err != "" {
			t.Errorf("answer %d is altered: %d bytes, not %d; %s", i, len(got[i].Body), len(want[i]), got[i].Err)
		}
	}
}
