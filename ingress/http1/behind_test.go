package http1

import (
	"bufio"
	"io"
	"net/http"
	"testing"
	"time"
)

func TestAWriteDeadlineIsForgottenWhenTheConnectionIsNetHTTPs(t *testing.T) {
	var until time.Time
	s := serve(t, func(_ *stand, w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			until = time.Now().Add(time.Second)
			_ = http.NewResponseController(w).SetWriteDeadline(until)
			_, _ = w.Write(make([]byte, 2*len(page{}))) // armed, as this much might wait
			return
		}
		_, _ = io.Copy(w, r.Body)
	})
	c := s.dial(t)
	answers := bufio.NewReader(c)
	answer := func(request string) string {
		_, _ = io.WriteString(c, request)
		resp, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	answer("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	<-time.After(time.Until(until))
	if got := answer("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"); got != "a" {
		t.Errorf("the answer after the deadline of the one before is %q, want %q", got, "a")
	}
}

// The race detector tells if two read the connection at once.
func TestAGoroutineThatTheHandlerLeftBehindReadsNoMore(t *testing.T) {
	reading, ended := make(chan bool), make(chan error)
	s := serve(t, func(_ *stand, _ http.ResponseWriter, r *http.Request) {
		go func() {
			p := make([]byte, 100)
			_, err := r.Body.Read(p)
			for close(reading); err == nil; {
				_, err = r.Body.Read(p)
			}
			ended <- err
		}()
		<-reading
	})
	c := s.dial(t)
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n")
	go func() {
		for p := make([]byte, 1000); ; {
			if _, err := c.Write(p); err != nil {
				return
			}
		}
	}()
	if err := <-ended; err != http.ErrBodyReadAfterClose {
		t.Errorf("the body ends with %v, want %v", err, http.ErrBodyReadAfterClose)
	}
	_, _ = io.Copy(io.Discard, c) // the answer, and the end
	c.Close()
}
