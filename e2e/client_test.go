package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"berth/llmserver/simulated"
)

// engines starts n engines of a kind. Unless it says otherwise, they are fast.
func engines(t *testing.T, n int, kind simulated.Config) []*simulated.Server {
	t.Helper()
	kind.PrefillTokensPerSecond, kind.DecodeStep = 1e6, cmp.Or(kind.DecodeStep, time.Millisecond)
	var all []*simulated.Server
	for i := range n {
		kind.ID = fmt.Sprintf("engine-%d", i+1)
		s, err := simulated.Listen("127.0.0.1:0", kind)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		all = append(all, s)
	}
	return all
}

// replicas lists engines as a configuration does. Their ids are their hosts and ports.
func replicas(servers ...*simulated.Server) string {
	var list []string
	for _, s := range servers {
		list = append(list, fmt.Sprintf(`{url: "%s"}`, s.URL()))
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// demo is the configuration of a model of that name, with these settings of its deployment.
func demo(deployment string, servers ...*simulated.Server) string {
	return anywhere + "llm_configs:\n" + model("demo", deployment, servers...)
}

func model(name, deployment string, servers ...*simulated.Server) string {
	return fmt.Sprintf("- model_loading_config: {model_id: %s}\n  deployment_config: {%s}\n  replicas: %s\n", name, deployment, replicas(servers...))
}

// newClient makes a client with connections of its own, of HTTP/1.1 or of HTTP/2 without TLS.
func newClient(t *testing.T, h2c bool) *http.Client {
	transport := &http.Transport{Protocols: new(http.Protocols), MaxIdleConnsPerHost: 1000, DisableCompression: true}
	transport.Protocols.SetHTTP1(!h2c)
	transport.Protocols.SetUnencryptedHTTP2(h2c)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// overBoth runs a test with a client of either protocol.
func overBoth(t *testing.T, test func(t *testing.T, client *http.Client)) {
	t.Run("HTTP1", func(t *testing.T) { test(t, newClient(t, false)) })
	t.Run("h2c", func(t *testing.T) { test(t, newClient(t, true)) })
}

// ask is the body of a chat request for a number of tokens.
func ask(model, prompt string, tokens int, stream bool) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}],"max_tokens":%d,"stream":%t}`, model, prompt, tokens, stream)
}

// endless is a request for a stream that does not end while a test runs.
func endless(model string) string { return ask(model, "Count, and never stop.", 400_000, true) }

// answer is what a client got, up to an error.
type answer struct {
	status int
	header http.Header
	body   []byte
	err    error
}

func (a answer) String() string {
	return fmt.Sprintf("status %d, error %v, body %s", a.status, a.err, tail(string(a.body), 400))
}

// complete tells whether the answer is a whole one, or a stream to its end.
func (a answer) complete() bool {
	if a.err != nil || a.status != http.StatusOK {
		return false
	}
	return !strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") || bytes.HasSuffix(a.body, []byte("data: [DONE]\n\n"))
}

// read takes in the answer to its end.
func read(resp *http.Response) answer {
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, body, err}
}

// send posts a chat request; the caller reads the answer.
func send(ctx context.Context, client *http.Client, base, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return client.Do(req)
}

// chat posts a chat request and reads the answer.
func chat(ctx context.Context, client *http.Client, base, body string) answer {
	resp, err := send(ctx, client, base, body)
	if err != nil {
		return answer{err: err}
	}
	return read(resp)
}

// begin posts a chat request in the background. What comes of it can be received once.
func begin(ctx context.Context, client *http.Client, base, body string) <-chan answer {
	result := make(chan answer, 1)
	go func() { result <- chat(ctx, client, base, body) }()
	return result
}

// open posts a request for a stream and reads its first event.
func open(t *testing.T, ctx context.Context, client *http.Client, base, body string) *http.Response {
	t.Helper()
	resp, err := send(ctx, client, base, body)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	rest := bufio.NewReader(resp.Body)
	if line, err := rest.ReadString('\n'); !strings.HasPrefix(line, "data: ") {
		t.Fatalf("no event but %d %q %v", resp.StatusCode, line, err)
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{rest, resp.Body}
	return resp
}

// expect receives an answer.
func expect(t *testing.T, result <-chan answer) answer {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	select {
	case a := <-result:
		return a
	case <-deadline.C:
		t.Fatal("no answer came")
		return answer{}
	}
}

// dialRaw connects to the address of a URL; closed with the test.
func dialRaw(t *testing.T, url string) net.Conn {
	t.Helper()
	scheme, address, _ := strings.Cut(url, "://")
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if scheme == "https" {
		c = tls.Client(c, &tls.Config{InsecureSkipVerify: true})
	}
	t.Cleanup(func() { c.Close() })
	return c
}
