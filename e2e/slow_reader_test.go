package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// longPause is longer than the 30 s after which the kernel closes the connection of a vanished
// peer.
const longPause = 34 * time.Second

// A client pauses reading mid-stream until all buffers are full, and a replica pauses reading an
// upload. After the pause both continue without an error.
func TestClientThatPausesReadingIsNotCut(t *testing.T) {
	t.Parallel()
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			return // health check
		}
		if r.ContentLength > 1<<20 {
			r.Body.Read(make([]byte, 1000))
			<-time.After(longPause)
			n, err := io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"read":%d,"error":"%v"}`, n, err)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		event := "data: {}\n\n" + strings.Repeat(": more\n\n", 4<<10)
		for {
			if _, err := io.WriteString(w, event); err != nil {
				return
			}
		}
	}))
	t.Cleanup(engine.Close)
	b := serve(t, loopbackConfig+"llm_configs:\n- {model_loading_config: {model_id: demo}, replicas: [{url: \""+engine.URL+"\"}]}\n")

	t.Run("client", func(t *testing.T) {
		t.Parallel()
		for _, version := range []string{"1.1", "1.0"} { // berth's own HTTP server, and net/http's
			t.Run(version, func(t *testing.T) {
				t.Parallel()
				c := dialRaw(t, b.url)
				const body = `{"model":"demo","stream":true,"messages":[{"role":"user","content":"Hello"}]}`
				fmt.Fprintf(c, "POST /v1/chat/completions HTTP/%s\r\nHost: berth\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", version, len(body), body)
				r := bufio.NewReader(c)
				if _, err := io.CopyN(io.Discard, r, 1<<20); err != nil {
					t.Fatal(err)
				}
				<-time.After(longPause)
				if n, err := io.CopyN(io.Discard, r, 32<<20); err != nil {
					t.Errorf("after the pause: %d bytes, error %v", n, err)
				}
				c.Close()
			})
		}
	})
	t.Run("replica", func(t *testing.T) {
		t.Parallel()
		text := strings.Repeat("x", 20<<20)
		got := chat(t.Context(), newClient(t, false), b.url, `{"model":"demo","messages":[{"role":"user","content":"`+text+`"}]}`)
		if got.err != nil || got.status != http.StatusOK || !strings.Contains(string(got.body), `"error":"<nil>"`) {
			t.Errorf("got %v", got)
		}
	})
}
