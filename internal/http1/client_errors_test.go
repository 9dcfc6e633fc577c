package http1

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
)

func TestClientConnectionRefusedIsNotConnected(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	_, _, err := roundTripBody(newTestClient(t, server.URL), newPost(t.Context(), "/v1/x"))
	wantFailure(t, err, failureNotConnected)
	wantNoAddress(t, err, server.URL)
}

func TestClientUnknownHostIsNotConnected(t *testing.T) {
	const base = "http://no-such-engine.invalid:7"
	_, _, err := roundTripBody(newTestClient(t, base), newPost(t.Context(), "/"))
	wantFailure(t, err, failureNotConnected)
	wantNoAddress(t, err, base)
}

func TestClientConnectTimeoutIsNotConnected(t *testing.T) {
	const base = "http://127.0.0.1:9"
	c := newTestClient(t, base)
	c.SetOptions(ClientOptions{ConnectTimeout: 1})
	_, _, err := roundTripBody(c, newPost(t.Context(), "/"))
	wantFailure(t, err, failureNotConnected)
	if !strings.Contains(err.Error(), "timed out") {
		t.Errorf("the error is %v", err)
	}
	wantNoAddress(t, err, base)
}

func TestClientBrokenConnectionIsNotRetried(t *testing.T) {
	for name, leave := range map[string]func(net.Conn){
		"closed": func(net.Conn) {},
		"reset":  func(c net.Conn) { c.(*net.TCPConn).SetLinger(0) },
	} {
		var requests atomic.Int32
		base := rawServer(t, func(_ int, c net.Conn) {
			if readWholeRequest(bufio.NewReader(c)) {
				requests.Add(1)
			}
			leave(c)
		})
		_, _, err := roundTripBody(newTestClient(t, base), newPost(t.Context(), "/v1/x"))
		wantFailure(t, err, failureBroken)
		wantNoAddress(t, err, base)
		if requests.Load() != 1 {
			t.Errorf("%s: the server saw %d requests", name, requests.Load())
		}
	}
}

func TestClientStaleConnectionIsNotRetried(t *testing.T) {
	var connections, requests atomic.Int32
	base := rawServer(t, func(_ int, c net.Conn) {
		connections.Add(1)
		r := bufio.NewReader(c)
		for n := 0; n < 2 && readWholeRequest(r); n++ {
			requests.Add(1)
			if n == 0 {
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}
		}
	})
	c := newTestClient(t, base)
	mustRoundTrip(t, c)
	_, _, err := roundTripBody(c, newPost(t.Context(), "/"))
	wantFailure(t, err, failureStale)
	wantNoAddress(t, err, base)
	if connections.Load() != 1 || requests.Load() != 2 {
		t.Errorf("%d connections, %d requests; want 1, 2", connections.Load(), requests.Load())
	}
}

// If one idle connection was closed, the others most likely were as well.
func TestClientStaleConnectionClosesOtherIdleOnes(t *testing.T) {
	base := rawServer(t, func(_ int, c net.Conn) {
		r := bufio.NewReader(c)
		readWholeRequest(r)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
		readWholeRequest(r)
	})
	c := newTestClient(t, base)
	first, err := c.Do(newPost(t.Context(), "/"))
	if err != nil {
		t.Fatal(err)
	}
	mustRoundTrip(t, c) // on a second connection
	io.Copy(io.Discard, first.Body)
	_, _, err = roundTripBody(c, newPost(t.Context(), "/"))
	wantFailure(t, err, failureStale)
	mustRoundTrip(t, c)
}

func TestClientInvalidResponse(t *testing.T) {
	for name, response := range map[string]string{
		"garbage":             "220 smtp.example.com ready\r\n\r\n",
		"garbage, and waits":  "220 smtp.example.com ready\r\n",
		"one wrong byte":      "X",
		"h2":                  "HTTP/2.0 200 OK\r\n\r\n",
		"a broken header":     "HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
		"too large a header":  "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 300<<10) + "\r\n\r\n",
		"endless fields":      "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: y\r\n", 60<<10),
		"endless preliminary": strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", maxResponseHeader/20),
		"another protocol":    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			base := rawServer(t, func(_ int, c net.Conn) {
				if readWholeRequest(bufio.NewReader(c)) {
					io.WriteString(c, response)
					discardUntilClosed(c)
				}
			})
			_, _, err := roundTripBody(newTestClient(t, base), newPost(t.Context(), "/"))
			wantFailure(t, err, failureInvalidResponse)
			wantNoAddress(t, err, base)
		})
	}
}

// Once a response has begun the server has done the work, so the request must not be retried.
func TestClientTruncatedHeaderIsInvalidResponse(t *testing.T) {
	for _, response := range []string{"H", "HTTP/1.1 200 OK\r\nX: y\r\n", "HTTP/1.1 100 Continue\r\n\r\n"} {
		base := rawServer(t, func(_ int, c net.Conn) {
			if readWholeRequest(bufio.NewReader(c)) {
				io.WriteString(c, response)
			}
		})
		_, _, err := roundTripBody(newTestClient(t, base), newPost(t.Context(), "/"))
		wantFailure(t, err, failureInvalidResponse)
		if err != nil && !strings.Contains(err.Error(), errTruncatedHeader.Error()) {
			t.Errorf("the error is %q", err)
		}
	}
}

// Interim responses are bounded in bytes, together with the final one.
func TestClientInterimResponsesShareOneLimit(t *testing.T) {
	interim := func(size int) string {
		return "HTTP/1.1 102 Processing\r\nX: " + strings.Repeat("x", size) + "\r\n\r\n"
	}
	for _, c := range []struct {
		response string
		want     error
	}{
		{strings.Repeat(interim(1), 100) + smallResponse, nil},
		{strings.Repeat(interim(maxResponseHeader/3), 2) + smallResponse, nil},
		{strings.Repeat(interim(maxResponseHeader/3), 3) + smallResponse, errHeaderTooLong},
	} {
		rt := newScriptedRoundTrip(http.MethodPost, &scriptConn{data: []byte(c.response)})
		if err := rt.readResponse(); err != c.want {
			t.Errorf("%d bytes: %v; want %v", len(c.response), err, c.want)
		}
	}
}

// A server may refuse a large request before it has read it, and then read no more.
func TestClientReadsEarlyResponse(t *testing.T) {
	for _, after := range []string{"waits", "hangs up"} {
		t.Run(after, func(t *testing.T) {
			responded := make(chan struct{})
			base := rawServer(t, func(n int, c net.Conn) {
				if n == 0 {
					http.ReadRequest(bufio.NewReaderSize(c, 16))
				} else if !readWholeRequest(bufio.NewReader(c)) {
					return
				}
				io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno\n")
				if n > 0 || after == "hangs up" {
					return
				}
				<-responded
			})
			c := newTestClient(t, base)
			resp, body, err := roundTripBody(c, newRequest(t.Context(), http.MethodPost, "/", strings.Repeat("x", 64<<20)))
			close(responded)
			if err != nil || resp.StatusCode != http.StatusRequestEntityTooLarge || body != "no\n" {
				t.Fatalf("Do = %v, %q, %v", resp, body, err)
			}
			mustRoundTrip(t, c) // the first connection must not be reused
		})
	}
}

func TestClientStopsUploadAtEarlyResponse(t *testing.T) {
	const size = 64 << 20
	got := make(chan int64, 1)
	base := rawServer(t, func(_ int, c net.Conn) {
		r := bufio.NewReader(c)
		http.ReadRequest(r)
		io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
		n, _ := io.Copy(io.Discard, r)
		got <- n
	})
	resp, _, err := roundTripBody(newTestClient(t, base), newRequest(t.Context(), http.MethodPost, "/", strings.Repeat("x", size)))
	if err != nil || resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Fatal(resp, err)
	}
	if n := <-got; n == size {
		t.Error("the whole body was sent")
	}
}

func TestClientReadsResponseAfterWriteError(t *testing.T) {
	c := Client{}
	s := &scriptConn{data: []byte("HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n"), writeErr: io.ErrClosedPipe}
	rt := newRoundTrip(newPost(t.Context(), "/"), newClientConn(s), &c.pool)
	if err := rt.sendRequest([]byte("POST / HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := rt.receiveResponse(); err != nil || rt.response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("the response is %v, %v", rt.response, err)
	}
	if idleConns(&c) != 0 {
		t.Error("the connection is kept")
	}
}

// A slowConn takes a little of its first write, and then everything.
type slowConn struct {
	scriptConn
	got []byte
}

func (s *slowConn) Write(p []byte) (int, error) {
	if len(s.got) == 0 {
		n := min(5, len(p)-1)
		s.got = append(s.got, p[:n]...)
		return n, os.ErrDeadlineExceeded
	}
	s.got = append(s.got, p...)
	return len(p), nil
}

func TestClientLongWriteContinues(t *testing.T) {
	p := []byte(strings.Repeat("0123456789", singleWriteMax/5))
	for _, header := range []int{len(p), 100, 3} {
		s := &slowConn{}
		early, err := newClientConn(s).writeRequest(p[:header], p[header:])
		if early || err != nil || !bytes.Equal(s.got, p) {
			t.Errorf("early %t, %v, %d of %d bytes", early, err, len(s.got), len(p))
		}
		if !s.deadline.IsZero() {
			t.Error("the write deadline was not removed")
		}
	}
}
