package agent

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// upload sends the head of a request and a part of its body, and returns what it is answered.
func (s *stand) upload(token, part string, declared string) *http.Response {
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

func TestASilentUploadIsEndedAndItsSlotGivenBack(t *testing.T) {
	s := newStand(t, 1, nil, func(c *Config) { c.BodyTimeout = 50 * time.Millisecond })
	token := headerToken + ": " + s.reserved().String() + "\r\n"
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
	if held := s.agent.bodies.held.Load(); held != 0 {
		t.Errorf("%d bytes are held", held)
	}
}

func TestASlowUploadThatIsNotSilentIsServed(t *testing.T) {
	s := newStand(t, 1, nil, func(c *Config) { c.BodyTimeout = 10 * time.Second })
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

func TestBodiesTogetherAreBoundedAndRefusedAsFull(t *testing.T) {
	entered, leave := make(chan struct{}, 8), make(chan struct{})
	s := newStand(t, 8, func(w http.ResponseWriter, _ *http.Request) {
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
	if held := s.agent.bodies.held.Load(); held != 0 {
		t.Errorf("%d bytes are held", held)
	}
}

func TestABodyIsReadWholeWhateverItsSize(t *testing.T) {
	s := &bodies{each: 1 << 20}
	for _, n := range []int{0, 1, firstBuffer - 1, firstBuffer, firstBuffer + 1, 3 * firstBuffer, 1 << 20} {
		for _, declared := range []bool{true, false} {
			want := bytes.Repeat([]byte("berth"), n/5+1)[:n]
			r := httptest.NewRequest(http.MethodPost, "/", io.NopCloser(bytes.NewReader(want)))
			if r.ContentLength = -1; declared {
				r.ContentLength = int64(n)
			}
			b, err := s.read(httptest.NewRecorder(), r)
			if err != nil {
				t.Fatalf("%d bytes: %v", n, err)
			}
			got := b.data
			if !bytes.Equal(got, want) {
				t.Errorf("%d bytes were read as %d", n, len(got))
			}
			if held := s.held.Load(); held != int64(cap(got)) || declared && n > 0 && cap(got) > max(n+1, firstBuffer) {
				t.Errorf("for %d bytes %d are held, in %d", n, held, cap(got))
			}
			b.release()
			if b.release(); s.held.Load() != 0 {
				t.Fatalf("%d bytes stay held", s.held.Load())
			}
		}
	}
}

func TestADeclaredLengthAloneHoldsNothing(t *testing.T) {
	s := &bodies{each: 1 << 40, all: 1 << 20}
	r := httptest.NewRequest(http.MethodPost, "/", io.NopCloser(strings.NewReader("little")))
	r.ContentLength = 1 << 39
	b, err := s.read(httptest.NewRecorder(), r)
	if err != nil || s.held.Load() != firstBuffer {
		t.Errorf("%v, %d bytes held", err, s.held.Load())
	}
	b.release()
}
