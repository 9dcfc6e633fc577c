package streaming_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"berth/streaming"
)

// A handler relays the response of an upstream, here an engine that streams two tokens.
func ExampleRelay_Copy() {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, token := range []string{"Hello", " world"} {
			fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", token)
			w.(http.Flusher).Flush()
		}
		io.WriteString(w, "data: [DONE]\n\n")
	}))
	defer engine.Close()

	relay := streaming.Relay{}
	ended := make(chan string, 1)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		upstream, _ := http.NewRequestWithContext(req.Context(), "GET", engine.URL, nil)
		streaming.CopyRequestHeader(upstream.Header, req.Header)
		resp, err := http.DefaultTransport.RoundTrip(upstream)
		if err != nil {
			http.Error(w, "no upstream", http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		var tap streaming.Tap
		result, err := relay.Copy(req.Context(), w, resp, &tap)
		ended <- fmt.Sprintf("%d bytes, %d events with content, done: %t, error: %v", result.Bytes, tap.ContentEvents(), tap.Done, err)
		if err != nil && result.Started {
			panic(http.ErrAbortHandler) // a truncated response must not look complete
		}
	}))
	defer proxy.Close()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()

	resp, err := http.Get(proxy.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	fmt.Print(string(body))
	fmt.Println(<-ended)
	// Output:
	// data: {"choices":[{"delta":{"content":"Hello"}}]}
	//
	// data: {"choices":[{"delta":{"content":" world"}}]}
	//
	// data: [DONE]
	//
	// 117 bytes, 2 events with content, done: true, error: <nil>
}

// An upstream that breaks on an event boundary: the client gets an error event, and the caller an
// error that names the side.
func ExampleRelay_Copy_upstreamBroken() {
	upstream := &http.Response{
		StatusCode:       http.StatusOK,
		ProtoMajor:       1,
		TransferEncoding: []string{"chunked"},
		ContentLength:    -1,
		Header:           http.Header{"Content-Type": {"text/event-stream"}},
		Body:             io.NopCloser(io.MultiReader(strings.NewReader("data: {\"a\":1}\n\n"), brokenReader{})),
	}
	client := httptest.NewRecorder()
	result, err := new(streaming.Relay).Copy(context.Background(), client, upstream, nil)
	fmt.Println(errors.Is(err, streaming.ErrUpstreamBroken), result.Started, result.Bytes)
	fmt.Println(strings.Count(client.Body.String(), "data: "), strings.Contains(client.Body.String(), `"code":"upstream_broken"`))
	// Output:
	// true true 15
	// 2 true
}

// brokenReader is a body whose connection was reset.
type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("connection reset by peer") }
