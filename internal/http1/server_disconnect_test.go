package http1

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// leave are the ways in which a client goes.
var disconnects = map[string]func(*net.TCPConn){
	"closed":      func(c *net.TCPConn) { c.Close() },
	"half-closed": func(c *net.TCPConn) { c.CloseWrite() },
	"reset":       func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
}

// phases are what a handler may be at when its client goes. began is closed when it is.
var disconnectPhases = map[string]struct {
	request string
	handle  func(w http.ResponseWriter, r *http.Request, began chan<- struct{}) error
}{
	"before an answer": {"GET / HTTP/1.1\r\nHost: h\r\n\r\n", func(_ http.ResponseWriter, r *http.Request, began chan<- struct{}) error {
		close(began)
		<-r.Context().Done()
		return r.Context().Err()
	}},
	"before reading the body": {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc", func(_ http.ResponseWriter, r *http.Request, began chan<- struct{}) error {
		close(began)
		<-r.Context().Done()
		return r.Context().Err()
	}},
	"while reading the body": {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc", func(_ http.ResponseWriter, r *http.Request, began chan<- struct{}) error {
		close(began)
		if _, err := io.ReadAll(r.Body); err == nil {
			return errors.New("the body is whole")
		}
		<-r.Context().Done()
		return r.Context().Err()
	}},
	"with a next request in the pipe": {"GET / HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\n", func(_ http.ResponseWriter, r *http.Request, began chan<- struct{}) error {
		close(began)
		<-r.Context().Done()
		return r.Context().Err()
	}},
	"between two events": {"GET / HTTP/1.1\r\nHost: h\r\n\r\n", func(w http.ResponseWriter, r *http.Request, began chan<- struct{}) error {
		err := errors.Join(writeStrings(w, "data: 1\n\n"), flushWriter(w))
		close(began)
		<-r.Context().Done()
		return errors.Join(err, r.Context().Err())
	}},
}

func TestAClientThatGoesIsNoticedInEveryPhase(t *testing.T) {
	for name, phase := range disconnectPhases {
		for how, go_ := range disconnects {
			t.Run(name+" "+how, func(t *testing.T) {
				began, ended := make(chan struct{}), make(chan error, 1)
				s := serve(t, func(_ *testServer, w http.ResponseWriter, r *http.Request) { ended <- phase.handle(w, r, began) })
				c := s.dial(t)
				io.WriteString(c, phase.request)
				receiveFrom(t, began)
				go_(c)
				if err := receiveFrom(t, ended); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v", err)
				}
			})
		}
	}
}

func TestAClientThatGoesEndsAWriteThatHangs(t *testing.T) {
	for how, go_ := range disconnects {
		if how == "half-closed" {
			continue // it may yet read
		}
		t.Run(how, func(t *testing.T) {
			ended := make(chan error, 1)
			s := serve(t, func(_ *testServer, w http.ResponseWriter, r *http.Request) { ended <- writeOn(w, r, nil) })
			c := s.dial(t)
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
			io.ReadFull(c, make([]byte, 1000))
			go_(c)
			if err := receiveFrom(t, ended); err == nil {
				t.Error("all of it was written")
			}
		})
	}
}

// writeOn writes until that fails, and tells of progress.
func writeOn(w http.ResponseWriter, r *http.Request, progress chan<- struct{}) error {
	for {
		if _, err := io.WriteString(w, long); err != nil {
			<-r.Context().Done() // comes with it
			return err
		}
		select {
		case progress <- struct{}{}:
		default:
		}
	}
}

func TestARequestOfAClientThatHasGoneBeforeBeginsCancelled(t *testing.T) {
	served := make(chan struct{}, 3)
	s := serve(t, func(_ *testServer, w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		served <- struct{}{}
	})
	c := s.dial(t)
	io.WriteString(c, strings.Repeat("GET / HTTP/1.1\r\nHost: h\r\n\r\n", 3))
	c.CloseWrite()
	for range 3 {
		receiveFrom(t, served)
	}
}

func TestADeadlineIsArmedForWhatWaitsAndTakenBackBeforeTheNext(t *testing.T) {
	var armed []time.Time
	d := ioDeadline{setDeadline: func(at time.Time) error { armed = append(armed, at); return nil }}
	one, two := time.Unix(1, 0), time.Unix(2, 0)
	expect := func(when string, want ...time.Time) {
		t.Helper()
		if !slices.Equal(armed, want) {
			t.Errorf("%s: armed %v, want %v", when, armed, want)
		}
		armed = nil
	}
	d.set(one)
	d.beforeIO()
	d.afterIO()
	expect("set, and nothing waits")
	d.beforeIO()
	d.beforeWait()
	expect("something waits", one)
	d.set(two)
	expect("set while it does", two)
	d.beforeWait()
	d.afterIO()
	expect("waiting on")
	d.set(time.Time{})
	expect("taken back when nothing waits")
	d.beforeIO()
	expect("the next begins", time.Time{})
	d.beforeWait()
	d.afterIO()
	d.beforeIO()
	d.beforeWait()
	expect("nothing is set")
}

func TestTheContextLastsAsLongAsItsRequest(t *testing.T) {
	contexts := make(chan context.Context, 1)
	s := serve(t, func(_ *testServer, w http.ResponseWriter, r *http.Request) {
		if err := r.Context().Err(); err != nil {
			t.Errorf("it is over when the handler begins: %v", err)
		}
		if r.Context().Value(http.ServerContextKey).(*http.Server) == nil || r.Context().Value(http.LocalAddrContextKey).(net.Addr).String() != r.Host {
			t.Error("the context knows neither server nor address")
		}
		contexts <- r.Context()
	})
	c := s.dial(t)
	for range 3 {
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+s.address+"\r\n\r\n")
		<-receiveFrom(t, contexts).Done()
	}
}

func TestAWriteDeadlineEndsWhatWaits(t *testing.T) {
	for name, deadline := range map[string]time.Time{"now": time.Unix(1, 0), "soon": time.Now().Add(200 * time.Millisecond)} {
		t.Run(name, func(t *testing.T) {
			ended, progress := make(chan error, 1), make(chan struct{})
			controls := make(chan *http.ResponseController, 1)
			s := serve(t, func(_ *testServer, w http.ResponseWriter, r *http.Request) {
				controls <- http.NewResponseController(w)
				ended <- writeOn(w, r, progress)
			})
			c := s.dial(t)
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
			control := receiveFrom(t, controls)
			for stuck := false; !stuck; { // nobody reads, so sooner or later a write waits
				select {
				case <-progress:
				case <-time.After(100 * time.Millisecond):
					stuck = true
				}
			}
			if err := control.SetWriteDeadline(deadline); err != nil {
				t.Fatal(err)
			}
			if err := receiveFrom(t, ended); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			if answers := readResponses(c); len(answers) != 1 || answers[0].Err == "" {
				t.Error("the answer looks whole")
			}
		})
	}
}

func readResponses(c net.Conn) []response {
	raw, _ := io.ReadAll(c)
	return parseResponses(raw)
}

func TestAReadDeadlineEndsWhatWaitsAndIsForgottenWithTheRequest(t *testing.T) {
	ended := make(chan error, 1)
	s := serve(t, func(_ *testServer, w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if r.URL.Path == "/late" {
			rc.SetReadDeadline(time.Now().Add(-time.Hour))
			_, err := io.ReadAll(r.Body)
			ended <- err
			return
		}
		rc.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		got, err := io.ReadAll(r.Body)
		if err == nil {
			err = rc.SetReadDeadline(time.Unix(1, 0)) // left behind
		} else if string(got) == "ab" {
			<-r.Context().Done()
		}
		ended <- err
	})
	c := s.dial(t)
	for range 3 {
		io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nabcd")
		if err := receiveFrom(t, ended); err != nil {
			t.Errorf("a body that is there: %v", err)
		}
	}
	io.WriteString(c, "POST /late HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nabcd")
	if err := receiveFrom(t, ended); err != nil {
		t.Errorf("a body that came with its head: %v", err)
	}
	io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nab")
	if err := receiveFrom(t, ended); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	answers := readResponses(c)
	if last := answers[len(answers)-1]; len(answers) != 5 || !last.Close || last.Err != "" {
		t.Errorf("got %v", answers)
	}
}

// Law 12: whatever a handler had written when it panicked, it does not look complete.
func TestAPanicAfterTheFirstByteNeverLooksComplete(t *testing.T) {
	for name, header := range map[string]string{"chunked": "X-A", "known": "Content-Length"} {
		for _, cause := range []any{http.ErrAbortHandler, "oh"} {
			for _, size := range []int{5, 3000, 5000, 100_000} {
				s := serve(t, func(_ *testServer, w http.ResponseWriter, _ *http.Request) {
					w.Header().Set(header, "200000")
					writeStrings(w, "first")
					flushWriter(w)
					writeStrings(w, strings.Repeat("x", size))
					panic(cause)
				})
				c := s.dial(t)
				io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
				answers := readResponses(c)
				if len(answers) != 1 || answers[0].Err == "" || !strings.HasPrefix(answers[0].Body, "first") {
					t.Errorf("%s, %v: got %s", name, cause, formatResponses(answers))
				}
			}
		}
	}
}
