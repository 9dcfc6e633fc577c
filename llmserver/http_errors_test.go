package llmserver

import (
	"bufio"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// rawServer accepts connections for serve, which gets each of them with its number, from 0.
func rawServer(t *testing.T, serve func(n int, c net.Conn)) (base string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				serve(n, c)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	return "http://" + l.Addr().String()
}

// readRequest reads one complete request.
func readRequest(r *bufio.Reader) bool {
	req, err := http.ReadRequest(r)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

// wantNoAddress fails if the text of an error would show a client the address of a replica.
func wantNoAddress(t *testing.T, err error, base string) {
	t.Helper()
	u, _ := url.Parse(base)
	for _, secret := range []string{u.Hostname(), u.Port()} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("the error %q contains the address %s", err, u.Host)
		}
	}
}

func TestDialHTTPRejectsInvalidURLs(t *testing.T) {
	for _, bad := range []string{"", "host:8000", "ftp://host", "http://", "/v1", "http://[::1", "http://a\x7f"} {
		for name, dialHTTP := range map[string]func(Endpoint) (*HTTP, error){"DialHTTP": DialHTTP, "net/http": dialNetHTTP} {
			if _, err := dialHTTP(Endpoint{URL: bad}); err == nil {
				t.Errorf("%s: %q was accepted", name, bad)
			}
		}
	}
}

func TestHTTPConnectionRefusedIsNoConnection(t *testing.T) {
	eachTransport(t, func(t *testing.T, dial func(Endpoint) *HTTP) {
		server := httptest.NewServer(http.NotFoundHandler())
		server.Close()
		_, _, err := dial(Endpoint{URL: server.URL}).Do(post(t.Context(), "/v1/x"), Token{})
		if !errors.Is(err, ErrNoConnection) || errors.Is(err, ErrBroken) {
			t.Fatalf("Do = %v; want ErrNoConnection", err)
		}
		wantNoAddress(t, err, server.URL)
	})
}

func TestHTTPConnectTimeoutIsNoConnection(t *testing.T) {
	eachTransport(t, func(t *testing.T, dial func(Endpoint) *HTTP) {
		const base = "http://127.0.0.1:9"
		_, _, err := dial(Endpoint{URL: base, ConnectTimeout: 1}).Do(post(t.Context(), "/"), Token{})
		if !errors.Is(err, ErrNoConnection) || !strings.Contains(err.Error(), "timed out") {
			t.Fatalf("Do = %v; want ErrNoConnection, timed out", err)
		}
		wantNoAddress(t, err, base)
	})
}

func TestHTTPTLSHandshakeTimeoutIsNoConnection(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	base := "https://" + silent.Addr().String()
	_, _, err = dial(t, Endpoint{URL: base, ConnectTimeout: 20 * time.Millisecond}, DialHTTP).Do(post(t.Context(), "/"), Token{})
	if !errors.Is(err, ErrNoConnection) || !errors.Is(err, ErrConnectTimeout) {
		t.Fatalf("Do = %v; want ErrNoConnection, timed out", err)
	}
	wantNoAddress(t, err, base)
}

func TestHTTPUntrustedCertificateIsNoConnection(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	base := strings.Replace(server.URL, "127.0.0.1", "localhost", 1)
	_, _, err := dial(t, Endpoint{URL: base}, DialHTTP).Do(post(t.Context(), "/"), Token{})
	if !errors.Is(err, ErrNoConnection) {
		t.Fatalf("Do = %v; want ErrNoConnection", err)
	}
	wantNoAddress(t, err, base)
}

func TestHTTPBrokenConnectionIsNotRetried(t *testing.T) {
	eachTransport(t, func(t *testing.T, dial func(Endpoint) *HTTP) {
		var requests atomic.Int32
		base := rawServer(t, func(_ int, c net.Conn) {
			if readRequest(bufio.NewReader(c)) {
				requests.Add(1)
			}
		})
		_, _, err := dial(Endpoint{URL: base}).Do(post(t.Context(), "/v1/x"), Token{})
		if !errors.Is(err, ErrBroken) || errors.Is(err, ErrStale) || errors.Is(err, ErrNoConnection) {
			t.Fatalf("Do = %v; want ErrBroken alone", err)
		}
		wantNoAddress(t, err, base)
		if requests.Load() != 1 {
			t.Errorf("the replica saw %d requests", requests.Load())
		}
	})
}

func TestHTTPStaleConnectionIsNotRetried(t *testing.T) {
	eachTransport(t, func(t *testing.T, dial func(Endpoint) *HTTP) {
		var connections, requests atomic.Int32
		base := rawServer(t, func(_ int, c net.Conn) {
			connections.Add(1)
			r := bufio.NewReader(c)
			for n := 0; n < 2 && readRequest(r); n++ {
				requests.Add(1)
				if n == 0 {
					io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
			}
		})
		h := dial(Endpoint{URL: base})
		resp, _, err := h.Do(post(t.Context(), "/"), Token{})
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		req := post(t.Context(), "/")
		req.Header.Set("Idempotency-Key", "1") // which tempts net/http's transport
		_, _, err = h.Do(req, Token{})
		if !errors.Is(err, ErrBroken) || !errors.Is(err, ErrStale) {
			t.Fatalf("Do = %v; want ErrBroken and ErrStale", err)
		}
		wantNoAddress(t, err, base)
		if connections.Load() != 1 || requests.Load() != 2 {
			t.Errorf("%d connections, %d requests; want 1, 2", connections.Load(), requests.Load())
		}
	})
}

func TestHTTPInvalidResponseIsNotHTTP(t *testing.T) {
	eachTransport(t, func(t *testing.T, dial func(Endpoint) *HTTP) {
		for name, answer := range map[string]string{
			"garbage":          "220 smtp.example.com ready\r\n\r\n",
			"a broken header":  "HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
			"too large a head": "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 300<<10) + "\r\n\r\n",
		} {
			t.Run(name, func(t *testing.T) {
				base := rawServer(t, func(_ int, c net.Conn) {
					if readRequest(bufio.NewReader(c)) {
						io.WriteString(c, answer)
					}
				})
				_, _, err := dial(Endpoint{URL: base}).Do(post(t.Context(), "/"), Token{})
				if !errors.Is(err, ErrNotHTTP) {
					t.Fatalf("Do = %v; want ErrNotHTTP", err)
				}
				wantNoAddress(t, err, base)
			})
		}
	})
}

func TestHTTPSendTimeoutEndsUpload(t *testing.T) {
	eachTransport(t, func(t *testing.T, dial func(Endpoint) *HTTP) {
		done := make(chan struct{})
		base := rawServer(t, func(_ int, c net.Conn) { <-done }) // it reads nothing
		defer close(done)
		h := dial(Endpoint{URL: base, SendTimeout: 250 * time.Millisecond})
		req := post(t.Context(), "/")
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat("x", 32<<20))), 32<<20
		_, _, err := h.Do(req, Token{})
		if !errors.Is(err, ErrTimeout) || !errors.Is(err, ErrSendTimeout) {
			t.Errorf("the error is %v, want ErrSendTimeout", err)
		}
	})
}
