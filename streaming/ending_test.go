package streaming

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// chopped is read in pieces of one size.
type chopped struct {
	rest string
	size int
}

func (c *chopped) Read(p []byte) (int, error) {
	if c.rest == "" {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), c.size)], c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// endings relays body and returns what the client had when the answer was said to be ending, "-" if it never was.
func endings(t *testing.T, contentType, body string, length int64, pieces int) []string {
	t.Helper()
	w := httptest.NewRecorder()
	var seen []string
	resp := &http.Response{
		StatusCode:    http.StatusOK,
		Header:        http.Header{"Content-Type": {contentType}},
		Body:          io.NopCloser(&chopped{body, max(1, len(body)/pieces)}),
		ContentLength: length,
	}
	relay := Relay{Ending: func() { seen = append(seen, w.Body.String()) }}
	if _, err := relay.Copy(t.Context(), w, resp, nil); err != nil {
		t.Fatal(err)
	}
	if w.Body.String() != body {
		t.Fatalf("relayed %q, want %q", w.Body, body)
	}
	return seen
}

func TestTheEndingComesOnceAndBeforeTheWriteThatCompletesTheAnswer(t *testing.T) {
	events := "data: {}\n\ndata: {\"x\":1}\n\n"
	for _, c := range []struct{ name, kind, body, had string }{
		{"an event stream with DONE", eventStream, events + "data: [DONE]\n\n", events},
		{"DONE without a space", eventStream, events + "data:[DONE]\n\n", events},
		{"a comment after DONE", eventStream, events + "data: [DONE]\n\n: bye\n\n", events},
		{"text that speaks of DONE", eventStream, "data: {\"x\":\"data: [DONE]\"}\n\ndata: [DONE]x\n\n" + events + "data: [DONE]\n\n", "data: {\"x\":\"data: [DONE]\"}\n\ndata: [DONE]x\n\n" + events},
		{"an event stream without DONE", eventStream, events, events},
	} {
		for _, pieces := range []int{1, 7, len(c.body)} {
			seen := endings(t, c.kind, c.body, -1, pieces)
			if len(seen) != 1 || !strings.HasPrefix(c.had, seen[0]) || pieces == len(c.body) && seen[0] != c.had {
				t.Errorf("%s in %d pieces: the endings were at %q, want one at %q or before", c.name, pieces, seen, c.had)
			}
		}
	}
	long := strings.Repeat("x", 3*largeBuffer)
	if seen := endings(t, "text/plain", long, int64(len(long)), 10); len(seen) != 1 || len(seen[0]) >= len(long) {
		t.Errorf("an answer of known length was complete before its ending (%d endings)", len(seen))
	}
	if seen := endings(t, "text/plain", "", 0, 1); len(seen) != 1 {
		t.Errorf("an empty answer had %d endings, want 1", len(seen))
	}
}

func TestAStreamThatOnlyItsConnectionDelimitsMustEndInDone(t *testing.T) {
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
				Body:             io.NopCloser(&chopped{c.body, max(1, len(c.body)/pieces)}),
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
				t.Errorf("%s in %d pieces: the client got %q, want %q", c.name, pieces, w.Body, want)
			}
		}
	}
}
