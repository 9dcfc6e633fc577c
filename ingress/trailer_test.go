package ingress

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// speaking is a replica that sends the same bytes for every request and then closes the connection.
func speaking(t *testing.T, response string) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if req, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				io.Copy(io.Discard, req.Body)
				io.WriteString(conn, response)
			}
			conn.Close()
		}
	}()
	return "http://" + l.Addr().String()
}

// verbatim sends a chat request by hand and returns every byte of the response.
func (f *front) verbatim(version string) string {
	f.t.Helper()
	body := chat("m")
	_, r := f.raw(fmt.Sprintf("POST /v1/chat/completions HTTP/%s\r\nHost: h\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", version, len(body), body))
	raw, err := io.ReadAll(r)
	if err != nil {
		f.t.Fatalf("%q and %v", raw, err)
	}
	return string(raw)
}

func TestTrailerForbiddenIsDropped(t *testing.T) {
	const forbidden = "Content-Length: 5\r\nHost: elsewhere\r\nAuthorization: Bearer x\r\nContent-Type: a/b\r\nCache-Control: no-store\r\nTe: gzip\r\nWww-Authenticate: Basic\r\n"
	url := speaking(t, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, Authorization, Host\r\n\r\n"+
		"2\r\n{}\r\n0\r\nX-Sum: 7\r\n"+forbidden+"\r\n")
	f := serve(t, modelOn("m", url))
	head, rest, _ := strings.Cut(f.verbatim("1.1"), "\r\n\r\n")
	if !strings.Contains(head, "\r\nTrailer: X-Sum\r\n") || strings.Contains(head, "Authorization") || strings.Contains(head, "Host") {
		t.Errorf("the header is %q", head)
	}
	if rest != "2\r\n{}\r\n0\r\nX-Sum: 7\r\n\r\n" {
		t.Errorf("the body is %q", rest)
	}
	r := f.chat("m") // by Go's client, which fails on some of them
	if r.err != nil || r.body != "{}" || r.Trailer.Get("X-Sum") != "7" || len(r.Trailer) != 1 {
		t.Errorf("Go's client got %q, %v, %v", r.body, r.Trailer, r.err)
	}
}

// Interim responses share the size limit of a header.
func TestInterimResponsesAreBounded(t *testing.T) {
	const interim = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
	for n, want := range map[int]string{0: "200", 6: "200", 1000: "200", 10_000: "502"} {
		f := serve(t, modelOn("m", speaking(t, strings.Repeat(interim, n)+"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")))
		if got := f.verbatim("1.1"); !strings.HasPrefix(got, "HTTP/1.1 "+want+" ") {
			t.Errorf("%d interim responses: got %.200q", n, got)
		}
	}
}
