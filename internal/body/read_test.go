package body

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestReadReturnsTheWholeBodyOfAnySizeAndFraming(t *testing.T) {
	bothProtocols(t, func(t *testing.T, h2c bool) {
		o := options(6<<20, 8<<20)
		client, _ := serveOverPipes(t, h2c, echoBody(o))
		for _, size := range []int{0, 1, 4095, 4096, 4097, firstBuffer, firstBuffer + 1, 100_000, 5<<20 + 1, 6 << 20} {
			sent := strings.Repeat("0123456789abcde", size/15+1)[:size]
			for _, length := range []int64{int64(size), -1} {
				if got := upload(client, length, io.MultiReader(strings.NewReader(sent))); got != sent {
					t.Fatalf("%d bytes, length %d: got %d bytes: %.80s", size, length, len(got), got)
				}
			}
		}
		if held := o.Budget.Held(); held != 0 {
			t.Fatalf("%d bytes are still held", held)
		}
	})
}

func TestReadRejectsBodiesOverTheLimit(t *testing.T) {
	bothProtocols(t, func(t *testing.T, h2c bool) {
		var o *Options
		client, _ := serveOverPipes(t, h2c, func(w http.ResponseWriter, r *http.Request) { echoBody(o)(w, r) })
		for _, limit := range []int64{20_000, firstBuffer, 2 * firstBuffer} { // next to and at the sizes of buffers
			o = options(limit, 1<<20)
			want := fmt.Sprintf("The request body is too large: the limit is %d bytes; send less.", limit)
			for _, length := range []int64{limit + 1, -1} {
				if got := upload(client, length, io.MultiReader(strings.NewReader(strings.Repeat("x", int(limit+1))))); got != want {
					t.Errorf("limit %d, length %d: %.80s", limit, length, got)
				}
			}
			if held := o.Budget.Held(); held != 0 {
				t.Errorf("%d bytes are still held", held)
			}
		}
	})
}

// The limit plus one byte must not overflow, which would read nothing and report an empty body.
func TestReadOfUndeclaredLengthWorksWithTheLargestLimit(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("text"))
	r.ContentLength = -1
	b, err := Read(httptest.NewRecorder(), r, &Options{MaxBytes: math.MaxInt64, Budget: NewBudget(1 << 20)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	if got := string(b.Bytes()); got != "text" {
		t.Errorf("got %q", got)
	}
}

// unread is a body that must not be read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) { u.t.Error("the body was read"); return 0, io.EOF }

var errNotText = errors.New("not text")

func onlyText(h http.Header) error {
	if h.Get("Content-Type") != "text/plain" {
		return errNotText
	}
	return nil
}

func TestReadRejectsByTheHeaderBeforeItReads(t *testing.T) {
	for _, c := range []struct {
		contentType string
		length      int64
		want        error
	}{
		{"text/plain", 101, ErrTooLarge},
		{"image/png", 10, errNotText},
		{"image/png", 101, errNotText},
		{"image/png", -1, errNotText},
		{"image/png", 0, errNotText},
	} {
		o := &Options{MaxBytes: 100, Budget: NewBudget(1 << 20), CheckHeader: onlyText}
		r := httptest.NewRequest("POST", "/", unread{t})
		r.ContentLength = c.length
		r.Header.Set("Content-Type", c.contentType)
		if _, err := Read(httptest.NewRecorder(), r, o); !errors.Is(err, c.want) {
			t.Errorf("%d bytes of %s: %v", c.length, c.contentType, err)
		}
	}
}

func TestReadEndsASilentUploadAfterTheTimeout(t *testing.T) {
	bothProtocols(t, func(t *testing.T, h2c bool) {
		o := options(1<<20, 1<<20)
		client, _ := serveOverPipes(t, h2c, echoBody(o))
		pending, source := io.Pipe()
		start := time.Now()
		var dripping sync.WaitGroup
		dripping.Go(func() {
			for range 5 {
				_, _ = source.Write([]byte("x"))
				time.Sleep(20 * time.Second) // slow, but never silent for as long as the timeout
			}
		})
		if got := upload(client, 100, pending); got != ErrIdleTimeout.Error() {
			t.Errorf("response: %s", got)
		}
		if took := time.Since(start); took != 4*20*time.Second+o.IdleTimeout {
			t.Errorf("rejected after %v", took)
		}
		_ = source.Close()
		dripping.Wait()
		if held := o.Budget.Held(); held != 0 {
			t.Errorf("%d bytes are still held", held)
		}
	})
}

func TestReadOfAnAbortedUploadReturnsItsMemory(t *testing.T) {
	for name, sent := range map[string]string{
		"declared":  "POST / HTTP/1.1\r\nHost: b\r\nContent-Length: 100\r\n\r\n{",
		"chunked":   "POST / HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
		"malformed": "POST / HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\nnot a length\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := options(1<<20, 1<<20)
				result := make(chan error, 1)
				_, listener := serveOverPipes(t, false, func(w http.ResponseWriter, r *http.Request) {
					_, err := Read(w, r, o)
					result <- err
				})
				conn, _ := listener.dial(t.Context(), "", "")
				if _, err := io.WriteString(conn, sent); err != nil {
					t.Fatal(err)
				}
				_ = conn.Close()
				if err := <-result; err != ErrAborted {
					t.Error(err)
				}
				if held := o.Budget.Held(); held != 0 {
					t.Errorf("%d bytes are still held", held)
				}
			})
		})
	}
}

// Without a deadline net/http would wait forever for the body that the handler left unread.
func TestReadErrorIsNotDelayedByASilentUploader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(1<<20, 1<<20)
		o.CheckHeader = onlyText
		_, listener := serveOverPipes(t, false, echoBody(o))
		conn, _ := listener.dial(t.Context(), "", "")
		defer conn.Close()
		start := time.Now()
		_, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: b\r\nContent-Type: image/png\r\nContent-Length: 100\r\n\r\n")
		if err != nil {
			t.Fatal(err)
		}
		response, _ := io.ReadAll(conn)
		if !strings.Contains(string(response), errNotText.Error()) {
			t.Errorf("response: %s", response)
		}
		if took := time.Since(start); took < o.IdleTimeout || took > o.IdleTimeout+time.Second {
			t.Errorf("responded after %v", took)
		}
	})
}

func TestReadLeavesNoDeadlineAfterSuccess(t *testing.T) {
	bothProtocols(t, func(t *testing.T, h2c bool) {
		o := options(1<<20, 1<<20)
		client, _ := serveOverPipes(t, h2c, func(w http.ResponseWriter, r *http.Request) {
			b, err := Read(w, r, o)
			if err != nil {
				t.Error(err)
				return
			}
			defer b.Release()
			time.Sleep(10 * o.IdleTimeout)
			_, _ = fmt.Fprint(w, r.Context().Err())
		})
		for range 2 {
			if got := upload(client, 3, strings.NewReader("abc")); got != "<nil>" {
				t.Error(got)
			}
		}
	})
}

// deadlines is a ResponseWriter that records the deadlines that are set.
type deadlines struct {
	http.ResponseWriter
	set []time.Time
}

func (d *deadlines) SetReadDeadline(at time.Time) error { d.set = append(d.set, at); return nil }

func TestReadClearsTheDeadlineOnSuccessOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(3, 1<<20)
		for body, cleared := range map[string]bool{"abc": true, "abcd": false} {
			w := new(deadlines)
			r := httptest.NewRequest("POST", "/", io.MultiReader(strings.NewReader(body)))
			b, err := Read(w, r, o)
			if (err == nil) != cleared {
				t.Fatal(err)
			}
			if err == nil {
				b.Release()
			}
			want := time.Now().Add(o.IdleTimeout)
			if cleared {
				want = time.Time{}
			}
			if last := w.set[len(w.set)-1]; !last.Equal(want) {
				t.Errorf("%s: the last deadline is %v", body, last)
			}
		}
	})
}

func TestReadFailsWithoutReadDeadlines(t *testing.T) {
	o := options(100, 100)
	if _, err := Read(httptest.NewRecorder(), httptest.NewRequest("POST", "/", unread{t}), o); !errors.Is(err, http.ErrNotSupported) {
		t.Fatal(err)
	}
}
