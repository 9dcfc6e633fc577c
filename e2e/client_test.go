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

// startEngines starts n simulated engines. The default decode step is 1 ms.
func startEngines(t *testing.T, n int, config simulated.Config) []*simulated.Server {
	t.Helper()
	config.PrefillTokensPerSecond, config.DecodeStep = 1e6, cmp.Or(config.DecodeStep, time.Millisecond)
	var all []*simulated.Server
	for i := range n {
		config.ID = fmt.Sprintf("engine-%d", i+1)
		s, err := simulated.Listen("127.0.0.1:0", config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		all = append(all, s)
	}
	return all
}

// replicaList returns the engines as a YAML list of replicas. Their IDs are host:port.
func replicaList(servers ...*simulated.Server) string {
	var list []string
	for _, s := range servers {
		list = append(list, fmt.Sprintf(`{url: "%s"}`, s.URL()))
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// demoConfig returns a configuration with the model demo and the given deployment settings.
func demoConfig(deployment string, servers ...*simulated.Server) string {
	return loopbackConfig + "llm_configs:\n" + modelConfig("demo", deployment, servers...)
}

// modelConfig returns an entry of llm_configs.
func modelConfig(name, deployment string, servers ...*simulated.Server) string {
	return fmt.Sprintf("- model_loading_config: {model_id: %s}\n  deployment_config: {%s}\n  replicas: %s\n", name, deployment, replicaList(servers...))
}

// newClient returns a client with its own connections, for HTTP/1.1 or for HTTP/2 without TLS.
func newClient(t *testing.T, h2c bool) *http.Client {
	transport := &http.Transport{Protocols: new(http.Protocols), MaxIdleConnsPerHost: 1000, DisableCompression: true}
	transport.Protocols.SetHTTP1(!h2c)
	transport.Protocols.SetUnencryptedHTTP2(h2c)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// forBothProtocols runs a test with an HTTP/1.1 client and with an h2c client.
func forBothProtocols(t *testing.T, test func(t *testing.T, client *http.Client)) {
	t.Run("HTTP1", func(t *testing.T) { test(t, newClient(t, false)) })
	t.Run("h2c", func(t *testing.T) { test(t, newClient(t, true)) })
}

// chatBody returns the body of a chat request with the given max_tokens.
func chatBody(model, prompt string, tokens int, stream bool) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}],"max_tokens":%d,"stream":%t}`, model, prompt, tokens, stream)
}

// endlessChatBody returns a request for a stream that outlasts the test.
func endlessChatBody(model string) string {
	return chatBody(model, "Count, and never stop.", 400_000, true)
}

// response is the response received by a client, up to an error.
type response struct {
	status int
	header http.Header
	body   []byte
	err    error
}

func (a response) String() string {
	return fmt.Sprintf("status %d, error %v, body %s", a.status, a.err, tail(string(a.body), 400))
}

// isComplete reports whether the status is 200 and the body complete, for streams including [DONE].
func (a response) isComplete() bool {
	if a.err != nil || a.status != http.StatusOK {
		return false
	}
	return !strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") || bytes.HasSuffix(a.body, []byte("data: [DONE]\n\n"))
}

// readResponse reads the response to the end and closes the body.
func readResponse(resp *http.Response) response {
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return response{resp.StatusCode, resp.Header, body, err}
}

// postChat sends a chat request. The caller must read and close the body.
func postChat(ctx context.Context, client *http.Client, base, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return client.Do(req)
}

// chat sends a chat request and reads the response.
func chat(ctx context.Context, client *http.Client, base, body string) response {
	resp, err := postChat(ctx, client, base, body)
	if err != nil {
		return response{err: err}
	}
	return readResponse(resp)
}

// startChat sends a chat request in the background. The channel receives the response.
func startChat(ctx context.Context, client *http.Client, base, body string) <-chan response {
	result := make(chan response, 1)
	go func() { result <- chat(ctx, client, base, body) }()
	return result
}

// openStream sends a request for a stream and reads the first line.
func openStream(t *testing.T, ctx context.Context, client *http.Client, base, body string) *http.Response {
	t.Helper()
	resp, err := postChat(ctx, client, base, body)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	reader := bufio.NewReader(resp.Body)
	if line, err := reader.ReadString('\n'); !strings.HasPrefix(line, "data: ") {
		t.Fatalf("no event: status %d, line %q, error %v", resp.StatusCode, line, err)
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{reader, resp.Body}
	return resp
}

// waitResponse receives a response. The test fails after waitTimeout.
func waitResponse(t *testing.T, result <-chan response) response {
	t.Helper()
	deadline := time.NewTimer(waitTimeout)
	defer deadline.Stop()
	select {
	case a := <-result:
		return a
	case <-deadline.C:
		t.Fatal("timeout: no response")
		return response{}
	}
}

// dialRaw connects to the address of a URL, with TLS for https. Cleanup closes the connection.
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
