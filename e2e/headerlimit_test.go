package e2e

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestHeaderLimitKeepsLargeHeadersFromEngines(t *testing.T) {
	t.Parallel()
	engine := startTruncatingEngine(t)
	a := startAgent(t, engine, 4)
	b := serve(t, loopbackConfig+"llm_configs:\n- {model_loading_config: {model_id: demo}, replicas: [{url: \""+engine+"\"}]}\n")
	for name, url := range map[string]string{"berth": b.url, "agent": a.url} {
		for size, want := range map[int]int{60 << 10: http.StatusOK, 900 << 10: http.StatusRequestHeaderFieldsTooLarge} {
			c := dialRaw(t, url)
			body := http10Body("to the end", true)
			go fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nCookie: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", strings.Repeat("c", size), len(body), body)
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || resp.StatusCode != want {
				t.Errorf("%s, %d bytes: got %v, %v", name, size, resp, err)
			}
		}
	}
}
