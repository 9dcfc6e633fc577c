package agent

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"berth/llmserver"
)

// exhausted is an engine for which this process has no descriptor left.
type exhausted struct{ llmserver.Backend }

var errExhausted = fmt.Errorf("%w: socket: too many open files", llmserver.ErrExhausted)

func (exhausted) Do(*http.Request, llmserver.Token) (*http.Response, llmserver.Report, error) {
	return nil, llmserver.Report{}, errExhausted
}

func (exhausted) Probe(context.Context) (llmserver.Report, error) {
	return llmserver.Report{}, errExhausted
}

func TestAgentOwnExhaustionIsNotTheEngines(t *testing.T) {
	s := newTestAgent(t, 1, nil, func(c *Config) { c.Engine = exhausted{c.Engine} })
	a, err := s.tryCall(http.MethodPost, "/v1/x", "{}")
	if err != nil {
		t.Fatal(err)
	}
	if a.StatusCode != 503 || a.Header.Get(headerRefused) != refusedFull || !strings.Contains(a.text, "server_exhausted") || strings.Contains(a.text, "files") {
		t.Errorf("got %d %s, refused as %q", a.StatusCode, a.text, a.Header.Get(headerRefused))
	}
	if a, err := s.tryCall(http.MethodGet, "/health", ""); err != nil || a.StatusCode != 200 {
		t.Errorf("its health: %d %v", a.StatusCode, err)
	}
}
