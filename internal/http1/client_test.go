package http1

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestAURLThatCannotBeDialledIsRefused(t *testing.T) {
	for _, bad := range []string{"", "host:8000", "ftp://host", "https://", "http://", "/v1", "http://[::1", "http://a\x7f", "http://xn--\u00ff"} {
		if _, err := NewClient(bad, ClientOptions{}); err == nil {
			t.Errorf("NewClient(%q) succeeded", bad)
		}
	}
}

func TestTheHostIsToldAsOthersKnowIt(t *testing.T) {
	for base, want := range map[string][2]string{
		"http://engine":               {"engine:80", "engine"},
		"http://engine:8000/base":     {"engine:8000", "engine:8000"},
		"http://user:pass@engine:1":   {"engine:1", "engine:1"},
		"http://[::1]":                {"[::1]:80", "[::1]"},
		"http://[fe80::1%25eth0]:800": {"[fe80::1%eth0]:800", "[fe80::1]:800"},
		"http://bücher:1":             {"xn--bcher-kva:1", "xn--bcher-kva:1"},
	} {
		c := newTestClient(t, base)
		if got := [2]string{c.address, c.host}; got != want {
			t.Errorf("%s is dialled and named %q; want %q", base, got, want)
		}
	}
}

func TestARequestArrivesAsItWasGiven(t *testing.T) {
	var got *http.Request
	var body string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		got, body = req, string(b)
	}))
	defer server.Close()
	for _, size := range []int{0, 1, 2000, 64 << 10, 64<<10 + 1, 1 << 20} {
		want := strings.Repeat("x", size)
		req := newRequest(t.Context(), http.MethodPost, "/v1/chat/completions?x=1&y", want)
		req.Header = http.Header{"X-Two": {"a", "b"}, "User-Agent": nil, "Content-Type": {"application/json"},
			"Host": {"elsewhere"}, "Content-Length": {"7"}, "Transfer-Encoding": {"chunked"}, "Trailer": {"X"}}
		before := req.Header.Clone()
		if _, _, err := roundTripBody(newTestClient(t, server.URL), req); err != nil {
			t.Fatal(err)
		}
		if body != want || got.ContentLength != int64(size) || len(got.TransferEncoding) > 0 {
			t.Errorf("a body of %d bytes arrived as %d, announced as %d %q", size, len(body), got.ContentLength, got.TransferEncoding)
		}
		wantHeader := http.Header{"X-Two": {"a", "b"}, "Content-Type": {"application/json"}, "Content-Length": {fmt.Sprint(size)}}
		if fmt.Sprint(got.Header) != fmt.Sprint(wantHeader) || "http://"+got.Host != server.URL {
			t.Errorf("the header arrived as %v for %s; want %v", got.Header, got.Host, wantHeader)
		}
		if fmt.Sprint(req.Header) != fmt.Sprint(before) {
			t.Errorf("the caller's header became %v", req.Header)
		}
	}
}

func TestTheBasePathStandsBeforeTheRequestsOwn(t *testing.T) {
	for _, c := range []struct{ base, path, want string }{
		{"", "/v1/chat/completions", "/v1/chat/completions"},
		{"", "", "/"},
		{"/", "", "/"},
		{"", "/v1/models/a%2Fb?x=1&y", "/v1/models/a%2Fb?x=1&y"},
		{"", "/?", "/?"},
		{"", "/v1/a b%0Ac", "/v1/a%20b%0Ac"},
		{"/tenant", "/v1/chat/completions", "/tenant/v1/chat/completions"},
		{"/tenant/a", "/v1/models/a%2Fb?x=1", "/tenant/a/v1/models/a%2Fb?x=1"},
		{"/te%2Fnant", "/v1/models/a", "/te%2Fnant/v1/models/a"},
	} {
		req := newPost(t.Context(), c.path)
		if got := string(newTestClient(t, "http://engine"+c.base).appendTarget(nil, req.URL)); got != c.want {
			t.Errorf("%q under %q is asked for as %q; want %q", c.path, c.base, got, c.want)
		}
	}
}

// A header that holds the end of its line would be a request of its own.
func TestNothingCanBeSmuggledIntoAHead(t *testing.T) {
	base, connections := cannedServer(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	for name, spoil := range map[string]func(*http.Request){
		"a value": func(r *http.Request) { r.Header.Set("X", "a\r\nY: b") },
		"a name":  func(r *http.Request) { r.Header["X: a\r\nY"] = []string{"b"} },
		"no name": func(r *http.Request) { r.Header[""] = []string{"b"} },
		"method":  func(r *http.Request) { r.Method = "GET / HTTP/1.1\r\n\r\nGET" },
	} {
		req := newPost(t.Context(), "/")
		spoil(req)
		_, _, err := roundTripBody(newTestClient(t, base), req)
		if err == nil || failureOf(err) != failureNone || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: Do = %v", name, err)
		}
	}
	c := newTestClient(t, base)
	c.SetOptions(ClientOptions{APIKey: "k\r\nX: y"})
	if _, _, err := roundTripBody(c, newPost(t.Context(), "/")); err == nil || strings.Contains(err.Error(), "X: y") {
		t.Errorf("a key: Do = %v", err)
	}
	if n := len(connections()); n > 0 {
		t.Errorf("the replica saw %d requests", n)
	}
	req := newPost(t.Context(), "/")
	req.URL.RawQuery = "a b\r\n\r\nGET / HTTP/1.1\x7f"
	if got, want := string(c.appendTarget(nil, req.URL)), "/?a%20b%0D%0A%0D%0AGET%20/%20HTTP/1.1%7F"; got != want {
		t.Errorf("the query became %q; want %q", got, want)
	}
}

func TestAReplicasOwnKeyGoesToThatReplicaAlone(t *testing.T) {
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		got = append(got, strings.Join(req.Header.Values("Authorization"), ",")+req.Header.Get("X-Api-Key"))
	}))
	defer server.Close()
	keyless, keyed := newTestClient(t, server.URL), newTestClient(t, server.URL)
	keyed.SetOptions(ClientOptions{APIKey: "own"})
	send := func(c *Client) {
		req := newPost(t.Context(), "/")
		req.Header.Set("Authorization", "Bearer client")
		req.Header.Set("X-Api-Key", "client's")
		if _, _, err := roundTripBody(c, req); err != nil {
			t.Fatal(err)
		}
	}
	send(keyed)
	send(keyless)
	keyed.SetOptions(ClientOptions{APIKey: "new"})
	send(keyed)
	if want := []string{"Bearer own", "Bearer client" + "client's", "Bearer new"}; !slices.Equal(got, want) {
		t.Errorf("the replicas saw %q; want %q", got, want)
	}
}

func TestBytesAreNeitherAskedForNorUnpackedInAnotherEncoding(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		fmt.Fprintf(w, "asked for %q", req.Header.Values("Accept-Encoding"))
	}))
	defer server.Close()
	resp, body := mustRoundTrip(t, newTestClient(t, server.URL))
	if body != "asked for []" || resp.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("the body is %q, encoded %q", body, resp.Header.Get("Content-Encoding"))
	}
}

func TestABodyThatIsShorterThanItSaysEndsTheConnection(t *testing.T) {
	base, connections := cannedServer(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	c := newTestClient(t, base)
	mustRoundTrip(t, c)
	for _, body := range []io.Reader{strings.NewReader("short"), iotest.ErrReader(errors.New("lost"))} {
		req := newPost(t.Context(), "/")
		req.Body, req.ContentLength = io.NopCloser(body), 100_000
		_, err := c.Do(req)
		wantFailure(t, err, failureBroken)
	}
	if n := len(connections()); n != 1 {
		t.Errorf("the replica saw %d requests", n)
	}
}

func TestNoMoreOfABodyIsSentThanItSays(t *testing.T) {
	base, connections := cannedServer(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	c := newTestClient(t, base)
	req := newPost(t.Context(), "/")
	req.Body = io.NopCloser(strings.NewReader("{}GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	if _, _, err := roundTripBody(c, req); err != nil {
		t.Fatal(err)
	}
	mustRoundTrip(t, c)
	if n := len(connections()); n != 2 {
		t.Errorf("the replica saw %d requests", n)
	}
}

type closeRecorder struct {
	io.Reader
	closed bool
}

func (c *closeRecorder) Close() error { c.closed = true; return nil }

func TestTheRequestsBodyIsClosedWhateverComesOfIt(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	c := newTestClient(t, server.URL)
	for _, what := range []string{"an answer", "no connection"} {
		req := newPost(t.Context(), "/")
		body := &closeRecorder{Reader: req.Body}
		req.Body = body
		roundTripBody(c, req)
		if !body.closed {
			t.Errorf("%s: it was left open", what)
		}
		server.Close()
	}
}

func TestARequestOfUnknownLengthIsABug(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it was sent")
		}
	}()
	req := newPost(t.Context(), "/")
	req.ContentLength = -1
	newTestClient(t, "http://127.0.0.1:9").Do(req)
}
