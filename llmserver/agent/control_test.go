package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth/llmserver"
)

// dyingServer sends the given text in reply to one request. After it has read a second request on
// the same connection it dies, and no further connection succeeds.
func dyingServer(t *testing.T, text string) (url string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		defer l.Close() // before the connection
		r := bufio.NewReader(c)
		for range 2 {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			io.Copy(io.Discard, req.Body)
			io.WriteString(c, text)
			text = ""
		}
	}()
	return "http://" + l.Addr().String()
}

// ok returns a complete response.
func ok(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// The first attempt may have arrived, so a failed connect of the second one is no proof that the
// agent holds nothing.
func TestClientControlCallThatMayHaveArrivedIsNotRefused(t *testing.T) {
	for name, call := range map[string]func(c llmserver.Backend) error{
		"Reserve": func(c llmserver.Backend) error { _, err := c.Reserve(t.Context(), uuid.New(), 0); return err },
		"Cancel":  func(c llmserver.Backend) error { _, err := c.Cancel(t.Context(), uuid.New()); return err },
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, dyingServer(t, ok(`{"accepted":true,"instance":"i"}`)), "")
			if _, err := c.Reserve(t.Context(), uuid.New(), 0); err != nil {
				t.Fatal(err)
			}
			if err := call(c); !errors.Is(err, llmserver.ErrBroken) || llmserver.Refused(err) {
				t.Errorf("%s = %v; want it broken", name, err)
			}
		})
	}
}

// A truncated response is a broken connection: the reservation may exist.
func TestClientControlCallWithTruncatedResponseIsBroken(t *testing.T) {
	url := scriptedAgent(t, func(w http.ResponseWriter, _ *http.Request) { dropReply(w, []byte(`{"accepted":true}`)) })
	if _, err := dial(t, url, "").Reserve(t.Context(), uuid.New(), 0); !errors.Is(err, llmserver.ErrBroken) {
		t.Errorf("Reserve = %v; want it broken", err)
	}
}

// An abandoned slot is free again after the lease, so the lease must not grow with the wait.
func TestClientReserveRequestsTheDefaultLease(t *testing.T) {
	var body atomic.Pointer[string]
	url := scriptedAgent(t, func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		body.Store(new(string(text)))
		io.WriteString(w, `{"accepted":true,"instance":"i"}`)
	})
	token := uuid.New()
	if _, err := dial(t, url, "").Reserve(t.Context(), token, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	var call reserveRequest
	if err := json.Unmarshal([]byte(*body.Load()), &call); err != nil || call.LeaseS == nil || call.Token != token {
		t.Fatalf("it sent %s: %v", *body.Load(), err)
	}
	if call.lease() != DefaultLease || call.WaitMS != 30_000 {
		t.Errorf("it asks for a lease of %v after a wait of %d ms; want %v, 30000", call.lease(), call.WaitMS, DefaultLease)
	}
}

func TestClientUsesNewSecretAfterDescribe(t *testing.T) {
	s := newTestAgent(t, 1, nil, func(c *Config) { c.Secret = "new" })
	c := dial(t, s.url, "old")
	if _, err := c.Probe(t.Context()); err != errSecret {
		t.Errorf("with the old secret: %v", err)
	}
	c.Describe(llmserver.Endpoint{URL: s.url, CountsSlots: true, SlotSecret: "new", ConnectTimeout: time.Second})
	if _, err := c.Probe(t.Context()); err != nil {
		t.Errorf("with the new secret: %v", err)
	}
}

// The report of a draining agent takes effect at once; a failed health check would need three
// failures.
func TestClientProbeOfDrainingAgentSucceeds(t *testing.T) {
	s := newTestAgent(t, 1, nil)
	s.agent.Drain()
	if report, err := dial(t, s.url, "").Probe(t.Context()); !report.Draining || err != nil {
		t.Errorf("it reports %+v, %v", report, err)
	}
}

// The caller may send the request to another replica, which must not see this token.
func TestClientDoesNotModifyTheCallersHeader(t *testing.T) {
	s := newTestAgent(t, 1, nil)
	c := dial(t, s.url, "")
	req := chatRequest(t.Context())
	req.Header.Set("X-Client", "kept")
	resp, _, err := c.Do(req, s.mustReserve())
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if len(req.Header) != 1 {
		t.Errorf("the caller's header became %v", req.Header)
	}
}

// Under overload refusals are frequent, so they must not cost a connection each.
func TestClientReusesConnectionAfterRefusal(t *testing.T) {
	s := newTestAgent(t, 1, nil)
	var connections atomic.Int32
	server := httptest.NewUnstartedServer(s.agent)
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	c := dial(t, server.URL, "")
	for range 5 {
		if _, _, err := c.Do(chatRequest(t.Context()), uuid.New()); !errors.Is(err, llmserver.ErrToken) {
			t.Fatalf("Do = %v", err)
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections for five refusals", n)
	}
}
