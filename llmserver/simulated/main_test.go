package simulated

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	openai "github.com/sashabaranov/go-openai"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// atOnce is a config whose engines take hardly any time.
var atOnce = Config{PrefillTokensPerSecond: 1e12, DecodeStep: 1, DecodeStepPerRequest: 1}

func mustListen(t *testing.T, config Config) *Server {
	t.Helper()
	s, err := Listen("127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// newClient returns an SDK client whose connections end with the test.
func newClient(t *testing.T, s *Server) *openai.Client {
	config := openai.DefaultConfig("none")
	config.BaseURL = s.URL() + "/v1"
	config.HTTPClient = httpClient(t)
	return openai.NewClientWithConfig(config)
}

func httpClient(t *testing.T) *http.Client {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// post sends a body and reads the whole response; the error is the one that interrupted it.
func post(t *testing.T, c *http.Client, url, body string) (*http.Response, string, error) {
	t.Helper()
	resp, err := c.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp, string(data), err
}

// until waits until ok returns true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within 5 s: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
