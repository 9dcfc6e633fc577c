package streaming

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A piecewiseBody is read in pieces of one size, with io.EOF along with the last piece or in a read
// of its own.
type piecewiseBody struct {
	rest  string
	size  int
	early bool // io.EOF is returned with the last piece
	ended bool // io.EOF has been returned
}

func (c *piecewiseBody) Read(p []byte) (int, error) {
	n := copy(p[:min(len(p), c.size)], c.rest)
	c.rest = c.rest[n:]
	if c.rest == "" && (n == 0 || c.early) {
		c.ended = true
		return n, io.EOF
	}
	return n, nil
}

// countLastWriteCalls relays body and returns how often BeforeLastWrite was called. It fails the
// test if the body had not ended by then.
func countLastWriteCalls(t *testing.T, contentType string, body *piecewiseBody, length int64) (calls int) {
	t.Helper()
	w, text := httptest.NewRecorder(), body.rest
	resp := &http.Response{
		StatusCode:    http.StatusOK,
		ProtoMajor:    1,
		Header:        http.Header{"Content-Type": {contentType}},
		Body:          io.NopCloser(body),
		ContentLength: length,
	}
	if length < 0 {
		resp.TransferEncoding = []string{"chunked"}
	}
	relay := Relay{BeforeLastWrite: func() {
		calls++
		if !body.ended && int64(len(text)-len(body.rest)) != length {
			t.Errorf("BeforeLastWrite was called with %d of %d bytes unread, or before the end was read", len(body.rest), len(text))
		}
		if body.early && len(text) > 0 && w.Body.Len() >= len(text) {
			t.Error("BeforeLastWrite was called after the write that completes the response")
		}
	}}
	if _, err := relay.Copy(t.Context(), w, resp, nil); err != nil {
		t.Fatal(err)
	}
	if w.Body.String() != text {
		t.Fatalf("relayed %q, want %q", w.Body, text)
	}
	return calls
}

// An upstream may still be at work after [DONE], so only the end of the body ends the response.
func TestRelayBeforeLastWriteIsCalledOnceAtEndOfBody(t *testing.T) {
	const events = "data: {}\n\ndata: {\"x\":1}\n\n"
	long := strings.Repeat("x", 3*largeBuffer)
	for _, c := range []struct {
		name, kind, body string
		length           int64
	}{
		{"an event stream with DONE", eventStream, events + "data: [DONE]\n\n", -1},
		{"DONE without a space", eventStream, events + "data:[DONE]\n\n", -1},
		{"a comment after DONE", eventStream, events + "data: [DONE]\n\n: bye\n\n", -1},
		{"an event stream without DONE", eventStream, events, -1},
		{"text of known length", "text/plain", long, int64(len(long))},
		{"no text", "text/plain", "", 0},
	} {
		for _, pieces := range []int{1, 7, max(1, min(len(c.body), 100))} {
			for _, early := range []bool{false, true} {
				body := &piecewiseBody{rest: c.body, size: max(1, len(c.body)/pieces), early: early && c.length < 0}
				if calls := countLastWriteCalls(t, c.kind, body, c.length); calls != 1 {
					t.Errorf("%s in %d pieces: BeforeLastWrite was called %d times, want once", c.name, pieces, calls)
				}
			}
		}
	}
}

func TestRelayUnframedStreamNeedsDone(t *testing.T) {
	const events = "data: {\"x\":1}\n\ndata: {\"x\":2}\n\n"
	for _, c := range []struct {
		name, body string
		encoding   []string
		major      int
		broken     bool
	}{
		{"cut off", events, nil, 1, true},
		{"cut off within an event", events + "data: {", nil, 1, true},
		{"whole", events + "data: [DONE]\n\n", nil, 1, false},
		{"whole but for its last line end", events + "data: [DONE]", nil, 1, false},
		{"chunked", events, []string{"chunked"}, 1, false},
		{"h2", events, nil, 2, false},
	} {
		for _, pieces := range []int{1, 3, len(c.body)} {
			w := httptest.NewRecorder()
			resp := &http.Response{
				StatusCode:       http.StatusOK,
				ProtoMajor:       c.major,
				TransferEncoding: c.encoding,
				Header:           http.Header{"Content-Type": {eventStream}},
				Body:             io.NopCloser(&piecewiseBody{rest: c.body, size: max(1, len(c.body)/pieces)}),
				ContentLength:    -1,
			}
			_, err := (&Relay{}).Copy(t.Context(), w, resp, nil)
			if errors.Is(err, ErrUpstreamBroken) != c.broken {
				t.Errorf("%s in %d pieces: got %v", c.name, pieces, err)
			}
			want := c.body
			if c.broken {
				want = events + brokenEvent
			}
			if w.Body.String() != want {
				t.Errorf("%s in %d pieces: written %q, want %q", c.name, pieces, w.Body, want)
			}
		}
	}
}
