package http1

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
)

// A server sends unsolicited bytes after a complete response. Whatever they are, and however
// quickly connections are reused, no request gets them as its response.
func TestClientStrayBytesAreNoResponse(t *testing.T) {
	const stray = "HTTP/1.1 200 OK\r\nX-Request: stray\r\nContent-Length: 5\r\n\r\nstray"
	for name, c := range map[string]struct{ response, late string }{
		"a 204 with a late body":               {"HTTP/1.1 204 No Content\r\nX-Request: %s\r\n\r\n", stray},
		"a stray 408":                          {"HTTP/1.1 200 OK\r\nX-Request: %s\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"},
		"a second response":                    {"HTTP/1.1 200 OK\r\nX-Request: %s\r\nContent-Length: 2\r\n\r\n{}", stray},
		"a second response in the same packet": {"HTTP/1.1 200 OK\r\nX-Request: %s\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + stray, ""},
	} {
		t.Run(name, func(t *testing.T) {
			read, written := make(chan struct{}), make(chan struct{}, 1)
			defer close(read)
			client := newTestClient(t, strayingServer(t, c.response, c.late, read, written))
			for n := range 25 * strayEvery {
				req := newPost(t.Context(), "/")
				id := fmt.Sprint(n)
				req.Header.Set("X-Request", id)
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				io.Copy(io.Discard, resp.Body)
				if got := resp.Header.Get("X-Request"); got != id {
					t.Fatalf("the request %s got the response of %q: %s", id, got, resp.Status)
				}
				if odd := n%strayEvery == strayEvery-1; odd && c.late != "" {
					read <- struct{}{} // the connection is idle
					<-written
				}
			}
		})
	}
}

// strayEvery is how many requests there are per response with stray bytes.
const strayEvery = 40

// strayingServer sends the given response to every strayEvery-th request, and late once the
// response has been read. The other responses are valid.
func strayingServer(t *testing.T, response, late string, read <-chan struct{}, written chan<- struct{}) (base string) {
	var requests atomic.Int64
	return rawServer(t, func(_ int, c net.Conn) {
		for r := bufio.NewReader(c); ; {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			io.Copy(io.Discard, req.Body)
			id := req.Header.Get("X-Request")
			if requests.Add(1)%strayEvery != 0 {
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nX-Request: %s\r\nContent-Length: 2\r\n\r\n{}", id)
				continue
			}
			fmt.Fprintf(c, response, id)
			if late != "" {
				<-read
				io.WriteString(c, late)
				written <- struct{}{}
			}
		}
	})
}
