package http1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestServerHandoffResetsWriteDeadline(t *testing.T) {
	var until time.Time
	s := serve(t, func(_ *testServer, w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			until = time.Now().Add(time.Second)
			_ = http.NewResponseController(w).SetWriteDeadline(until)
			_, _ = w.Write(make([]byte, 2*len(page{}))) // a write so large arms the deadline
			return
		}
		_, _ = io.Copy(w, r.Body)
	})
	c := s.dial(t)
	responses := bufio.NewReader(c)
	response := func(request string) string {
		_, _ = io.WriteString(c, request)
		resp, err := http.ReadResponse(responses, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	response("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	<-time.After(time.Until(until))
	if got := response("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"); got != "a" {
		t.Errorf("the response after the deadline of the previous one is %q, want %q", got, "a")
	}
}

// The race detector fails if two goroutines read the connection at once.
func TestServerRequestBodyIsNotReadByLeftoverGoroutine(t *testing.T) {
	reading, ended := make(chan bool), make(chan error)
	s := serve(t, func(_ *testServer, _ http.ResponseWriter, r *http.Request) {
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
	_, _ = io.Copy(io.Discard, c) // the response and the end
	c.Close()
}

// The kernel resets a connection that is closed with data unread, and the client may lose data that
// it has not read.
func TestServerUnreadBodyDoesNotResetResponse(t *testing.T) {
	came := make(chan struct{})
	s := serve(t, func(_ *testServer, w http.ResponseWriter, _ *http.Request) {
		<-came
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		writeStrings(w, "too large")
	})
	c := s.dial(t)
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n"+strings.Repeat("x", 20_000))
	came <- struct{}{}
	raw, err := io.ReadAll(c) // to the end of the connection
	if responses := parseResponses(raw); err != nil || len(responses) != 1 || responses[0].Body != "too large" || !responses[0].Close {
		t.Errorf("got %s, %v", formatResponses(responses), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := s.http1Server().Shutdown(ctx); err != nil { // c is open yet
		t.Errorf("Shutdown waits for a client that neither sends its body nor disconnects: %v", err)
	}
}

// A goroutine that waits for the body holds its lock, and nothing arrives that would end the wait.
func TestServerPanicClosesConnectionWithBlockedBodyRead(t *testing.T) {
	ended := make(chan error, 1)
	s := serve(t, func(_ *testServer, _ http.ResponseWriter, r *http.Request) {
		go func() {
			_, err := r.Body.Read(make([]byte, 1))
			ended <- err
		}()
		for b := r.Body.(*requestBody); b.mu.TryLock(); runtime.Gosched() {
			b.mu.Unlock()
		}
		panic(http.ErrAbortHandler)
	})
	c := s.dial(t)
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n")
	if got, err := io.ReadAll(c); len(got) > 0 || err != nil {
		t.Errorf("the client got %q and %v", got, err)
	}
	if err := receiveFrom(t, ended); err == nil || err == io.EOF {
		t.Errorf("the body ended with %v", err)
	}
}

func TestServerLeftoverWriterFails(t *testing.T) {
	var first http.ResponseWriter
	s := serve(t, func(_ *testServer, w http.ResponseWriter, r *http.Request) {
		if first == nil {
			first = w
			writeStrings(w, "one")
			return
		}
		writeStrings(w, "t")
		first.WriteHeader(http.StatusTeapot)
		first.Header().Set("X-Evil", "1")
		_, written := io.WriteString(first, "evil")
		_, long := io.WriteString(first, long)
		if flushed := flushWriter(first); written != errHandlerReturned || long != errHandlerReturned || flushed != errHandlerReturned {
			t.Errorf("the writer of a handler that has returned returns %v, %v and %v", written, long, flushed)
		}
		writeStrings(w, "wo")
	})
	c := s.dial(t)
	_, _ = io.WriteString(c, "GET /1 HTTP/1.1\r\nHost: h\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
	raw, err := io.ReadAll(c)
	if all := parseResponses(raw); err != nil || len(all) != 2 || all[0].Body != "one" || all[1].Body != "two" || all[1].Header.Get("X-Evil") != "" {
		t.Errorf("got %q, %v", raw, err)
	}
}

func TestServerRequestBodyIsClosedAfterHandler(t *testing.T) {
	for _, path := range []string{"/return", "/duplex", "/panic"} {
		bodies := make(chan io.Reader, 1)
		s := serve(t, func(_ *testServer, w http.ResponseWriter, r *http.Request) {
			bodies <- r.Body
			switch r.URL.Path {
			case "/duplex":
				_ = http.NewResponseController(w).EnableFullDuplex()
			case "/panic":
				panic(http.ErrAbortHandler)
			}
		})
		c := s.dial(t)
		_, _ = io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody")
		_, _ = io.ReadAll(c)
		if err := s.http1Server().Shutdown(t.Context()); err != nil { // the connection's goroutine has ended
			t.Error(err)
		}
		if n, err := receiveFrom(t, bodies).Read(make([]byte, 4)); n > 0 || !errors.Is(err, http.ErrBodyReadAfterClose) {
			t.Errorf("%s: read %d bytes and %v", path, n, err)
		}
	}
}

// The response waits for the rest of the request body. The handler's goroutines need not.
func TestServerContextEndsWithHandler(t *testing.T) {
	contexts := make(chan context.Context, 1)
	s := serve(t, func(_ *testServer, w http.ResponseWriter, r *http.Request) {
		contexts <- r.Context()
		writeStrings(w, "response")
	})
	c := s.dial(t)
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbo")
	receiveFrom(t, receiveFrom(t, contexts).Done())
	_, _ = io.WriteString(c, "dyGET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
	if all := readResponses(c); len(all) != 2 || all[0].Body != "response" || all[1].Body != "response" {
		t.Errorf("got %s", formatResponses(all))
	}
}

// HTTP/2 begins at the beginning of a connection. Later its preface is not valid, and no request
// either.
func TestServerRejectsLateHTTP2Preface(t *testing.T) {
	const preface, settings = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	for name, before := range map[string]string{
		"after a GET":  "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
		"after a POST": "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx\r\n",
	} {
		s := serve(t, shapeHandler)
		c := s.dial(t)
		_, _ = io.WriteString(c, before+preface+settings)
		raw, err := io.ReadAll(c)
		if all := parseResponses(raw); len(all) != 1 || all[0].Status != "200 OK" || errors.Is(err, os.ErrDeadlineExceeded) { // a reset will do
			t.Errorf("%s: got %q, %v", name, raw, err)
		}
	}
}

// Bytes that were read before a handoff lie in a page, up to its end, and all of them reach
// net/http.
func TestServerHandoffLosesNoByte(t *testing.T) {
	s := serve(t, echoHandler)
	const plain, chunked = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, size := range []int{1, 2000, len(page{}) - len(plain) - len(chunked) - 4, len(page{}), 20_000} {
		body := long[:size]
		input := plain + chunked + strconv.FormatInt(int64(size), 16) + "\r\n" + body + "\r\n0\r\n\r\n" + plain
		for _, cut := range []int{len(plain) + 5, len(plain) + len(chunked) - 1, len(plain) + len(chunked) + 1, len(input)} {
			responses, _ := s.exchange(t, input[:cut], input[cut:])
			if len(responses) != 3 || responses[0].Body != "abc" || responses[1].Body != body || responses[2].Body != "abc" {
				t.Errorf("%d bytes, cut at %d: got %s", size, cut, formatResponses(responses))
			}
		}
	}
}

func TestServerRemovesMultipartFiles(t *testing.T) {
	names := make(chan string, 1)
	s := serve(t, func(_ *testServer, _ http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil {
			t.Error(err)
		}
		file, err := r.MultipartForm.File["f"][0].Open()
		if err != nil {
			t.Error(err)
		}
		names <- file.(*os.File).Name()
		file.Close()
	})
	var form strings.Builder
	w := multipart.NewWriter(&form)
	if part, err := w.CreateFormFile("f", "f"); err != nil || writeStrings(part, long) != nil || w.Close() != nil {
		t.Fatal(err)
	}
	s.exchange(t, "POST / HTTP/1.1\r\nHost: h\r\nContent-Type: "+w.FormDataContentType()+"\r\nContent-Length: "+itoa(form.Len())+"\r\n\r\n", form.String())
	if _, err := os.Stat(receiveFrom(t, names)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file still exists: %v", err)
	}
}
