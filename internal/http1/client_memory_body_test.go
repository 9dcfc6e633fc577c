package http1

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// parts is a body in memory, in several pieces.
type memoryBody []string

func (p *memoryBody) Read(b []byte) (int, error) {
	for len(*p) > 0 && (*p)[0] == "" {
		*p = (*p)[1:]
	}
	if len(*p) == 0 {
		return 0, io.EOF
	}
	n := copy(b, (*p)[0])
	(*p)[0] = (*p)[0][n:]
	return n, nil
}

func (p *memoryBody) SendTo(w io.Writer) error {
	for i, part := range *p {
		n, err := io.WriteString(w, part)
		if (*p)[i] = part[n:]; err != nil {
			return err
		}
	}
	return nil
}

func (p *memoryBody) Close() error { return nil }

func newMemoryPost(t *testing.T, length int, body ...string) *http.Request {
	req := newPost(t.Context(), "/")
	req.Body, req.ContentLength = (*memoryBody)(&body), int64(length)
	return req
}

func TestABodyInMemoryIsSentAsItIs(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body) // to its end before it answers
		w.Write(body)
	}))
	defer server.Close()
	c := newTestClient(t, server.URL)
	for _, size := range []int{0, 1, len(requestBuffer{}) - 200, len(requestBuffer{}), 300_000, 3 << 20} {
		first, last := strings.Repeat("a", size/2), strings.Repeat("b", size-size/2)
		_, got, err := roundTripBody(c, newMemoryPost(t, size+2, first, "{}", last, "more than was said"))
		if err != nil || got != first+"{}"+last {
			t.Errorf("of %d bytes the replica got %d, %v", size+2, len(got), err)
		}
	}
	if idleConns(c) != 1 {
		t.Errorf("%d connections are kept", idleConns(c))
	}
}

func TestABodyInMemoryThatIsShorterThanItSaysEndsTheConnection(t *testing.T) {
	base, _ := cannedServer(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	c := newTestClient(t, base)
	_, err := c.Do(newMemoryPost(t, 200_001, strings.Repeat("x", 200_000)))
	wantFailure(t, err, failureBroken)
	if idleConns(c) != 0 {
		t.Error("the connection is kept")
	}
}

func TestABodyInMemoryIsNotSentToItsEndWhereTheReplicaHasAnswered(t *testing.T) {
	const size = 64 << 20
	got := make(chan int64, 1)
	base := rawServer(t, func(_ int, c net.Conn) {
		r := bufio.NewReader(c)
		http.ReadRequest(r)
		io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
		n, _ := io.Copy(io.Discard, r)
		got <- n
	})
	c := newTestClient(t, base)
	resp, _, err := roundTripBody(c, newMemoryPost(t, size, strings.Repeat("x", size)))
	if err != nil || resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Fatal(resp, err)
	}
	if n := <-got; n == size || idleConns(c) != 0 {
		t.Errorf("%d bytes were sent, %d connections are kept", n, idleConns(c))
	}
}
