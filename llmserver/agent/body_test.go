package agent

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// upload sends the header of a request and part of its body, and returns the response.
func (s *testAgent) upload(token, part string, declared string) *http.Response {
	s.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: agent\r\nContent-Length: "+declared+"\r\n"+token+"\r\n"+part)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp
}

func TestServerEndsASilentUploadAndFreesItsSlot(t *testing.T) {
	s := newTestAgent(t, 1, nil, func(c *Config) { c.BodyTimeout = 50 * time.Millisecond })
	token := headerToken + ": " + s.mustReserve().String() + "\r\n"
	for name, token := range map[string]string{"with a reservation": token, "without": ""} {
		resp := s.upload(token, "half", "100")
		text, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusRequestTimeout || !strings.Contains(string(text), "body_timeout") || !resp.Close {
			t.Errorf("%s: %s %s", name, resp.Status, text)
		}
		if resp.Header.Get(headerRefused) != "" {
			t.Errorf("%s: it is marked as a refusal", name)
		}
	}
	s.wantCounts(0, 0, 0)
	if held := s.agent.bodies.Budget.Held(); held != 0 {
		t.Errorf("%d bytes are held", held)
	}
}

func TestServerServesASlowUpload(t *testing.T) {
	s := newTestAgent(t, 1, nil, func(c *Config) { c.BodyTimeout = 10 * time.Second })
	body, client := io.Pipe()
	go func() {
		for range 20 {
			io.WriteString(client, "some more ")
		}
		client.Close()
	}()
	resp, err := s.sendBody(t.Context(), http.MethodPost, "/v1/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("it was answered %s", resp.Status)
	}
}

func TestServerRefusesBodiesOverTheBudgetAsFull(t *testing.T) {
	entered, leave := make(chan struct{}, 8), make(chan struct{})
	s := newTestAgent(t, 8, func(w http.ResponseWriter, _ *http.Request) {
		entered <- struct{}{}
		<-leave
		io.WriteString(w, "{}")
	}, func(c *Config) { c.MaxBuffered = 100_000 })
	large := strings.Repeat("x", 60_000)
	var first sync.WaitGroup
	first.Go(func() {
		if a := s.call(http.MethodPost, "/v1/completions", large); a.StatusCode != http.StatusOK {
			t.Errorf("the first: %s", a.Status)
		}
	})
	<-entered
	a := s.call(http.MethodPost, "/v1/completions", large)
	if a.StatusCode != http.StatusServiceUnavailable || a.Header.Get(headerRefused) != refusedFull || !strings.Contains(a.text, "request_memory_exhausted") {
		t.Errorf("the second: %s %s", a.Status, a.text)
	}
	close(leave)
	first.Wait()
	if a := s.call(http.MethodPost, "/v1/completions", large); a.StatusCode != http.StatusOK {
		t.Errorf("the third: %s", a.Status)
	}
	if held := s.agent.bodies.Budget.Held(); held != 0 {
		t.Errorf("%d bytes are held", held)
	}
}
