package http1

import (
	"bufio"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func itoa(n int) string { return strconv.Itoa(n) }

// Clients of every kind connect, some disconnect at any time, and the server is shut down
// meanwhile. No response is altered or belongs to another request, and nothing is left.
func TestServerStormResponsesMatchRequests(t *testing.T) {
	for _, calm := range []bool{true, false} {
		s := serve(t, func(_ *testServer, w http.ResponseWriter, r *http.Request) {
			switch body, err := io.ReadAll(r.Body); {
			case err != nil || r.URL.Path == "/abort":
				panic(http.ErrAbortHandler)
			case r.URL.Path == "/events":
				for len(body) > 0 && r.Context().Err() == nil {
					n := min(len(body), 1+rand.IntN(2000))
					w.Write(body[:n])
					flushWriter(w)
					body = body[n:]
				}
			default:
				w.Write(body)
			}
		})
		var clients sync.WaitGroup
		for range 24 {
			clients.Go(func() {
				for range 12 {
					randomRequests(t, s.address, calm)
				}
			})
		}
		if !calm {
			s.http1Server().Shutdown(t.Context())
			s.server.Close()
		}
		clients.Wait()
		s.server.Close()
		if n := len(s.http1Server().conns); n > 0 {
			t.Errorf("%d connections are left", n)
		}
	}
}

// randomRequests sends a few requests on one connection. If calm, each must get its response,
// except those that ask for an abort.
func randomRequests(t *testing.T, address string, calm bool) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		if calm {
			t.Error(err)
		}
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(30 * time.Second))
	r := bufio.NewReader(c)
	for range 1 + rand.IntN(6) {
		body := long[:rand.IntN(10_000)]
		kind := rand.IntN(8)
		header := "POST " + [...]string{"/", "/events", "/abort"}[min(kind%4, 2)] + " HTTP/1.1\r\nHost: h\r\n"
		if kind < 4 {
			header += "Content-Length: " + itoa(len(body)) + "\r\n\r\n"
		} else {
			header += "Transfer-Encoding: chunked\r\n\r\n" + strconv.FormatInt(int64(len(body)+1), 16) + "\r\n!"
		}
		end := ""
		if kind >= 4 {
			end = "\r\n0\r\n\r\n"
		}
		if rand.IntN(10) == 0 { // disconnect within the request or after it
			io.WriteString(c, header+body[:rand.IntN(len(body)+1)])
			return
		}
		io.WriteString(c, header+body+end)
		if kind >= 4 {
			body = "!" + body
		}
		resp, err := http.ReadResponse(r, nil)
		var got strings.Builder
		if err == nil {
			_, err = io.Copy(&got, resp.Body)
		}
		if err != nil {
			if calm && kind%4 < 2 {
				t.Errorf("a request of kind %d: %v", kind, err)
			}
			return
		}
		if kind%4 >= 2 || got.String() != body {
			t.Errorf("a request of kind %d with %d bytes got %d", kind, len(body), got.Len())
		}
	}
}
