package agent

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"

	"berth/internal/tcp"
)

// When an ingress is killed, its requests end and free their slots. Its own queued reservation may
// be the next to get one, before the context of that call has ended.
func TestAgentGrantsNoSlotToDisconnectedCaller(t *testing.T) {
	s := newTestAgent(t, 1, nil)
	held := s.mustReserve()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	caller, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	token := uuid.New()
	done := make(chan any)
	go func() {
		defer func() { done <- recover() }()
		body := strings.NewReader(`{"token":"` + token.String() + `","wait_ms":60000}`)
		s.agent.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ConnContext(t.Context(), conn), http.MethodPost, "/internal/slots", body))
	}()
	eventually(t, "the call waits", func() bool { return s.agent.Read().Waiting == 1 })
	caller.Close()
	eventually(t, "the close has arrived", func() bool { return tcp.PeerClosed(conn.(*net.TCPConn)) })
	s.agent.table.Release(held)
	if cause := <-done; cause != http.ErrAbortHandler {
		t.Errorf("the call ended with %v", cause)
	}
	s.wantCounts(0, 0, 0)
	s.mustReserve()
}
