package e2e

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"syscall"
	"testing"

	"berth/llmserver"
)

// A peer that a broken network has cut off is given up after half a minute, not after the kernel's quarter of an hour.
func TestConnectionsAreGivenUpWhenTheirPeerHasVanished(t *testing.T) {
	listener, err := llmserver.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan net.Conn, 1)
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Listener.Close()
	s.Listener = listener
	s.Config.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateNew {
			accepted <- c
		}
	}
	s.Start()
	defer s.Close()
	backend, err := llmserver.DialHTTP(llmserver.Endpoint{URL: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	var dialled net.Conn
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { dialled = c.Conn }})
	req := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/"}, Header: http.Header{}, Body: http.NoBody}
	resp, _, err := backend.Do(req.WithContext(ctx), llmserver.Token{})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() // not yet, as it may close the connection
	for name, conn := range map[string]net.Conn{"accepted": <-accepted, "dialled": dialled} {
		if got := userTimeout(t, conn); got != 30_000 {
			t.Errorf("a connection that was %s gives its peer up after %d ms, want 30000", name, got)
		}
	}
}

// userTimeout reads TCP_USER_TIMEOUT of tcp(7).
func userTimeout(t *testing.T, c net.Conn) (ms int) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) { ms, failed = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, 0x12) })
	if err = errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	return ms
}
