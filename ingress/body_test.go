package ingress

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/openai"
)

func TestABodyIsReadWholeWhateverItsSizeAndFraming(t *testing.T) {
	bothProtocols(t, func(t *testing.T, h2c bool) {
		br := boundedReader(6<<20, 8<<20)
		client, _ := serveOverPipes(t, h2c, echoBody(br))
		for _, size := range []int{0, 1, 4095, 4096, 4097, firstBuffer, firstBuffer + 1, 100_000, 5<<20 + 1, 6 << 20} {
			sent := strings.Repeat("0123456789abcde", size/15+1)[:size]
			for _, length := range []int64{int64(size), -1} {
				if got := upload(client, length, io.MultiReader(strings.NewReader(sent))); got != sent {
					t.Fatalf("%d bytes, length %d: got %d bytes: %.80s", size, length, len(got), got)
				}
			}
		}
		if held := br.budget.held.Load(); held != 0 {
			t.Fatalf("%d bytes still held", held)
		}
	})
}

func TestABodyOverTheLimitIsRefused(t *testing.T) {
	bothProtocols(t, func(t *testing.T, h2c bool) {
		var br *bodyReader
		client, _ := serveOverPipes(t, h2c, func(w http.ResponseWriter, r *http.Request) { echoBody(br)(w, r) })
		for _, limit := range []int64{20_000, firstBuffer, 2 * firstBuffer} { // beside and on the sizes of buffers
			br = boundedReader(limit, 1<<20)
			want := fmt.Sprintf("The request body is too large: the limit is %d bytes.", limit)
			for _, length := range []int64{limit + 1, -1} {
				if got := upload(client, length, io.MultiReader(strings.NewReader(strings.Repeat("x", int(limit+1))))); got != want {
					t.Errorf("limit %d, length %d: %.80s", limit, length, got)
				}
			}
			if held := br.budget.held.Load(); held != 0 {
				t.Errorf("%d bytes still held", held)
			}
		}
	})
}

// unread is a body that must not be read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) { u.t.Error("the body was read"); return 0, io.EOF }

func TestWhatTheHeadersDecideIsDecidedBeforeTheBodyIsRead(t *testing.T) {
	for _, c := range []struct {
		name, value string
		length      int64
		want        error
	}{
		{"Content-Type", "application/json", 101, errBodyTooLarge},
		{"Content-Type", "text/plain", 10, openai.ErrContentType},
		{"Content-Encoding", "gzip", -1, openai.ErrContentEncoding},
	} {
		br := &bodyReader{maxBytes: 100, budget: newBudget(1 << 20)}
		r := httptest.NewRequest("POST", "/", unread{t})
		r.ContentLength = c.length
		r.Header.Set(c.name, c.value)
		if _, err := br.read(httptest.NewRecorder(), r); !errors.Is(err, c.want) {
			t.Errorf("%s: %s: %v", c.name, c.value, err)
		}
	}
}

func TestASilentUploaderIsRefusedAfterTheTimeout(t *testing.T) {
	bothProtocols(t, func(t *testing.T, h2c bool) {
		br := boundedReader(1<<20, 1<<20)
		client, _ := serveOverPipes(t, h2c, echoBody(br))
		pending, source := io.Pipe()
		start := time.Now()
		var dripping sync.WaitGroup
		dripping.Go(func() {
			for range 5 {
				_, _ = source.Write([]byte("x"))
				time.Sleep(20 * time.Second) // slow, but never silent for the timeout
			}
		})
		if got := upload(client, 100, pending); got != errBodySilent.Error() {
			t.Errorf("answer: %s", got)
		}
		if took := time.Since(start); took != 4*20*time.Second+br.timeout {
			t.Errorf("refused after %v", took)
		}
		_ = source.Close()
		dripping.Wait()
		if held := br.budget.held.Load(); held != 0 {
			t.Errorf("%d bytes still held", held)
		}
	})
}

func TestAnUploadBrokenOffGivesItsMemoryBack(t *testing.T) {
	for name, sent := range map[string]string{
		"declared":  "POST / HTTP/1.1\r\nHost: b\r\nContent-Length: 100\r\n\r\n{",
		"chunked":   "POST / HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
		"malformed": "POST / HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\nnot a length\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				br := boundedReader(1<<20, 1<<20)
				result := make(chan error, 1)
				_, listener := serveOverPipes(t, false, func(w http.ResponseWriter, r *http.Request) {
					_, err := br.read(w, r)
					result <- err
				})
				conn, _ := listener.dial(t.Context(), "", "")
				if _, err := io.WriteString(conn, sent); err != nil {
					t.Fatal(err)
				}
				_ = conn.Close()
				if err := <-result; err != errBodyAborted {
					t.Error(err)
				}
				if held := br.budget.held.Load(); held != 0 {
					t.Errorf("%d bytes still held", held)
				}
			})
		})
	}
}

// Without a deadline net/http would wait for ever for the body that the handler left unread.
func TestARefusalIsNotHeldBackByASilentUploader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		br := boundedReader(1<<20, 1<<20)
		_, listener := serveOverPipes(t, false, echoBody(br))
		conn, _ := listener.dial(t.Context(), "", "")
		defer conn.Close()
		start := time.Now()
		_, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: b\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\n")
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(conn)
		if !strings.Contains(string(answer), openai.ErrContentType.Error()) {
			t.Errorf("answer: %s", answer)
		}
		if took := time.Since(start); took < br.timeout || took > br.timeout+time.Second {
			t.Errorf("answered after %v", took)
		}
	})
}

func TestAGoodReadLeavesNoDeadlineBehind(t *testing.T) {
	bothProtocols(t, func(t *testing.T, h2c bool) {
		br := boundedReader(1<<20, 1<<20)
		client, _ := serveOverPipes(t, h2c, func(w http.ResponseWriter, r *http.Request) {
			b, err := br.read(w, r)
			if err != nil {
				t.Error(err)
				return
			}
			defer b.Release()
			time.Sleep(10 * br.timeout)
			_, _ = fmt.Fprint(w, r.Context().Err())
		})
		for range 2 {
			if got := upload(client, 3, strings.NewReader("abc")); got != "<nil>" {
				t.Error(got)
			}
		}
	})
}

// deadlines is a ResponseWriter that keeps the deadlines it is given.
type deadlines struct {
	http.ResponseWriter
	set []time.Time
}

func (d *deadlines) SetReadDeadline(at time.Time) error { d.set = append(d.set, at); return nil }

func TestTheDeadlineIsClearedAfterSuccessAndStaysAfterAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		br := boundedReader(3, 1<<20)
		for body, cleared := range map[string]bool{"abc": true, "abcd": false} {
			w := new(deadlines)
			r := httptest.NewRequest("POST", "/", io.MultiReader(strings.NewReader(body)))
			b, err := br.read(w, r)
			if (err == nil) != cleared {
				t.Fatal(err)
			}
			if err == nil {
				b.Release()
			}
			want := time.Now().Add(br.timeout)
			if cleared {
				want = time.Time{}
			}
			if last := w.set[len(w.set)-1]; !last.Equal(want) {
				t.Errorf("%s: the last deadline is %v", body, last)
			}
		}
	})
}

func TestAWriterWithoutDeadlinesIsAnError(t *testing.T) {
	br := boundedReader(100, 100)
	if _, err := br.read(httptest.NewRecorder(), httptest.NewRequest("POST", "/", unread{t})); !errors.Is(err, http.ErrNotSupported) {
		t.Fatal(err)
	}
}
