package llmserver

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"berth/internal/http1"
)

// WireVariable is the environment variable that selects the transport of plain TCP connections: if
// set to WireNetHTTP, Go's net/http replaces package http1. The variable applies to the ingress's
// server, too.
const (
	WireVariable = "BERTH_WIRE"
	WireNetHTTP  = "net/http"
)

// HTTP is the Backend of an engine or an agent over HTTP/1.1. Only the gate counts slots, not the
// server, so Reserve and Cancel cost nothing.
//
// The zero value cannot send requests.
type HTTP struct {
	transport transport
	probePath atomic.Pointer[string]
}

// A transport sends requests over connections to one server. The methods may be called from any
// goroutine.
type transport interface {
	// Do sends the request once. An error is an *http1.Error, the cause of the context's end, or
	// the reason why the request cannot be written as HTTP.
	Do(*http.Request) (*http.Response, error)
	SetOptions(http1.ClientOptions)
	Close()
}

// DialHTTP returns the backend of the server at an endpoint: over package http1, or over net/http's
// transport for TLS and where WireVariable requires. The first request connects, not DialHTTP. An
// error names the fault of the URL.
func DialHTTP(e Endpoint) (*HTTP, error) {
	if strings.HasPrefix(e.URL, "https://") || os.Getenv(WireVariable) == WireNetHTTP {
		return dialNetHTTP(e)
	}
	return dialHTTP1(e)
}

func dialHTTP1(e Endpoint) (*HTTP, error) {
	t, err := http1.NewClient(e.URL, clientOptions(e))
	if err != nil {
		return nil, err
	}
	return newHTTP(t, e), nil
}

func dialNetHTTP(e Endpoint) (*HTTP, error) {
	t, err := newNetTransport(e.URL, clientOptions(e))
	if err != nil {
		return nil, err
	}
	return newHTTP(t, e), nil
}

func newHTTP(t transport, e Endpoint) *HTTP {
	h := &HTTP{transport: t}
	h.setProbePath(e)
	return h
}

func (h *HTTP) setProbePath(e Endpoint) {
	path := cmp.Or(e.ProbePath, defaultProbePath)
	h.probePath.Store(&path)
}

func clientOptions(e Endpoint) http1.ClientOptions {
	return http1.ClientOptions{ConnectTimeout: e.ConnectTimeout, SendTimeout: e.SendTimeout, APIKey: e.APIKey}
}

// NetHTTP reports whether net/http's transport sends the requests.
func (h *HTTP) NetHTTP() bool {
	_, ok := h.transport.(*netTransport)
	return ok
}

// Describe sets the changeable options: the API key, the timeouts and the path of probes.
func (h *HTTP) Describe(e Endpoint) {
	h.setProbePath(e)
	if h.transport != nil {
		h.transport.SetOptions(clientOptions(e))
	}
}

// Reserve does nothing: the server does not count slots.
func (h *HTTP) Reserve(context.Context, Token, time.Duration) (Report, error) {
	return Report{}, nil
}

// Cancel does nothing.
func (h *HTTP) Cancel(context.Context, Token) (Report, error) { return Report{}, nil }

// Close closes idle connections. Requests in progress are not affected.
func (h *HTTP) Close() { h.transport.Close() }

// Do sends the request, once, and returns when the response header has been read. The request must
// have an exact ContentLength and no GetBody, with which net/http's transport could send twice.
func (h *HTTP) Do(req *http.Request, _ Token) (*http.Response, Report, error) {
	resp, err := h.transport.Do(req)
	if err != nil {
		return nil, Report{}, backendError(err)
	}
	return resp, Report{}, nil
}

const defaultProbePath = "/health"

// Probe requests the endpoint's ProbePath. Every status below 500 counts as healthy: an engine
// without that path is alive as well, while one still loading a model responds with 503.
func (h *HTTP) Probe(ctx context.Context) (Report, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, *h.probePath.Load(), nil)
	if err != nil {
		return Report{}, err
	}
	resp, report, err := h.Do(req, Token{})
	if err != nil {
		return report, err
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, io.LimitReader(resp.Body, 4<<10)) // lets the connection be reused
	if resp.StatusCode >= http.StatusInternalServerError {
		return report, fmt.Errorf("health check returned %s", cmp.Or(http.StatusText(resp.StatusCode), resp.Status))
	}
	return report, nil
}
