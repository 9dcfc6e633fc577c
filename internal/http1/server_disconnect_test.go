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

// disconnects are the ways in which a client disconnects.
var disconnects = map[string]func(*net.TCPConn){
	"closed":      func(c *net.TCPConn) { c.Close() },
	"half-closed": func(c *net.TCPConn) { c.CloseWrite() },
	"reset":       func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
}

// disconnectPhases are what a handler may be doing when its client disconnects. The handler closes
// began when it does.
var disconnectPhases = map[string]struct {
	request string
	handle  func(w http.ResponseWriter, r *http.Request, began chan<- struct{}) error
}{
	"before a response": {"GET / HTTP/1.1\r\nHost: h\r\n\r\n", func(_ http.ResponseWriter, r *http.Request, began chan<- struct{}) error {
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

func TestServerDisconnectCancelsContextInEveryPhase(t *testing.T) {
	for name, phase := range disconnectPhases {
		for how, disconnect := range disconnects {
			t.Run(name+" "+how, func(t *testing.T) {
				began, ended := make(chan struct{}), make(chan error, 1)
				s := serve(t, func(_ *testServer, w http.ResponseWriter, r *http.Request) { ended <- phase.handle(w, r, began) })
				c := s.dial(t)
				io.WriteString(c, phase.request)
				receiveFrom(t, began)
				disconnect(c)
				if err := receiveFrom(t, ended); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v", err)
				}
			})
		}
	}
}

func TestServerDisconnectEndsBlockedWrite(t *testing.T) {
	for how, disconnect := range disconnects {
		if how == "half-closed" {
			continue // the client may still read
		}
		t.Run(how, func(t *testing.T) {
			ended := make(chan error, 1)
			s := serve(t, func(_ *testServer, w http.ResponseWriter, r *http.Request) { ended <- writeOn(w, r, nil) })
			c := s.dial(t)
			io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
			io.ReadFull(c, make([]byte, 1000))
			disconnect(c)
			if err := receiveFrom(t, ended); err == nil {
				t.Error("everything was written")
			}
		})
	}
}

// writeOn writes until a write fails, and reports progress.
func writeOn(w http.ResponseWriter, r *http.Request, progress chan<- struct{}) error {
	for {
		if _, err := io.WriteString(w, long); err != nil {
			<-r.Context().Done() // ends with the failed write
			return err
		}
		select {
		case progress <- struct{}{}:
		default:
		}
	}
}

func TestServerRequestOfDisconnectedClientIsCancelled(t *testing.T) {
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

func TestIODeadlineIsArmedOnlyWhileWaiting(t *testing.T) {
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
	d.setTime(one)
	d.beforeIO()
	d.afterIO()
	expect("set while nothing waits")
	d.beforeIO()
	d.beforeWait()
	expect("a read waits", one)
	d.setTime(two)
	expect("set while a read waits", two)
	d.beforeWait()
	d.afterIO()
	expect("still waiting")
	d.setTime(time.Time{})
	expect("removed while nothing waits")
	d.beforeIO()
	expect("the next read begins", time.Time{})
	d.beforeWait()
	d.afterIO()
	d.beforeIO()
	d.beforeWait()
	expect("no deadline is set")
}

func TestServerContextLastsAsLongAsRequest(t *testing.T) {
	contexts := make(chan context.Context, 1)
	s := serve(t, func(_ *testServer, w http.ResponseWriter, r *http.Request) {
		if err := r.Context().Err(); err != nil {
			t.Errorf("the context has ended when the handler begins: %v", err)
		}
		if r.Context().Value(http.ServerContextKey).(*http.Server) == nil || r.Context().Value(http.LocalAddrContextKey).(net.Addr).String() != r.Host {
			t.Error("the context lacks the server or the address")
		}
		contexts <- r.Context()
	})
	c := s.dial(t)
	for range 3 {
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: "+s.address+"\r\n\r\n")
		<-receiveFrom(t, contexts).Done()
	}
}

func TestServerWriteDeadlineEndsBlockedWrite(t *testing.T) {
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
			for stuck := false; !stuck; { // until a write waits, since the client does not read
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
			if responses := readResponses(c); len(responses) != 1 || responses[0].Err == "" {
				t.Error("the response looks complete")
			}
		})
	}
}

func readResponses(c net.Conn) []response {
	raw, _ := io.ReadAll(c)
	return parseResponses(raw)
}

func TestServerReadDeadlineEndsBlockedReadAndIsReset(t *testing.T) {
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
			err = rc.SetReadDeadline(time.Unix(1, 0)) // must not affect the next request
		} else if string(got) == "ab" {
			<-r.Context().Done()
		}
		ended <- err
	})
	c := s.dial(t)
	for range 3 {
		io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nabcd")
		if err := receiveFrom(t, ended); err != nil {
			t.Errorf("a body that has arrived: %v", err)
		}
	}
	io.WriteString(c, "POST /late HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nabcd")
	if err := receiveFrom(t, ended); err != nil {
		t.Errorf("a body that arrived with its header: %v", err)
	}
	io.WriteString(c, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nab")
	if err := receiveFrom(t, ended); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	responses := readResponses(c)
	if last := responses[len(responses)-1]; len(responses) != 5 || !last.Close || last.Err != "" {
		t.Errorf("got %v", responses)
	}
}

// A truncated response never looks complete, whatever the handler had written when it panicked.
func TestServerPanicNeverLeavesCompleteResponse(t *testing.T) {
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
				responses := readResponses(c)
				if len(responses) != 1 || responses[0].Err == "" || !strings.HasPrefix(responses[0].Body, "first") {
					t.Errorf("%s, %v: got %s", name, cause, formatResponses(responses))
				}
			}
		}
	}
}
