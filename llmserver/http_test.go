package llmserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// eachTransport runs a test over package http1 and over net/http's transport. dial returns a
// backend whose idle connections are closed at the end of the test.
func eachTransport(t *testing.T, test func(t *testing.T, dial func(Endpoint) *HTTP)) {
	for name, dialHTTP := range map[string]func(Endpoint) (*HTTP, error){"http1": dialHTTP1, "nethttp": dialNetHTTP} {
		t.Run(name, func(t *testing.T) {
			test(t, func(e Endpoint) *HTTP { return dial(t, e, dialHTTP) })
		})
	}
}

func dial(t *testing.T, e Endpoint, dialHTTP func(Endpoint) (*HTTP, error)) *HTTP {
	t.Helper()
	if e.ConnectTimeout == 0 {
		e.ConnectTimeout = 5 * time.Second
	}
	h, err := dialHTTP(e)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// post returns a request as the ingress sends it, with a body that can be read once.
func post(ctx context.Context, path string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, path, io.NopCloser(strings.NewReader(`{}`)))
	if err != nil {
		panic(err)
	}
	req.ContentLength = 2
	return req
}

func TestHTTPContextEndReachesReplica(t *testing.T) {
	eachTransport(t, func(t *testing.T, dial func(Endpoint) *HTTP) {
		for _, phase := range []string{"before the answer", "in the answer"} {
			t.Run(phase, func(t *testing.T) {
				arrived, gone := make(chan struct{}), make(chan struct{})
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					io.Copy(io.Discard, req.Body)
					if phase == "in the answer" {
						http.NewResponseController(w).Flush()
					}
					close(arrived)
					<-req.Context().Done()
					close(gone)
				}))
				defer server.Close()
				why := errors.New("the client hung up")
				ctx, hangUp := context.WithCancelCause(t.Context())
				go func() {
					<-arrived
					if phase == "before the answer" {
						hangUp(why)
					}
				}()
				resp, _, err := dial(Endpoint{URL: server.URL}).Do(post(ctx, "/"), Token{})
				if phase == "in the answer" {
					if err != nil {
						t.Fatal(err)
					}
					hangUp(why)
					_, err = resp.Body.Read(make([]byte, 1))
					resp.Body.Close()
				}
				if phase == "before the answer" && err != why || err == nil {
					t.Errorf("it ended with %v", err)
				}
				<-gone
			})
		}
	})
}

func TestHTTPBodyCloseReachesReplica(t *testing.T) {
	eachTransport(t, func(t *testing.T, dial func(Endpoint) *HTTP) {
		gone := make(chan struct{})
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			io.Copy(io.Discard, req.Body)
			http.NewResponseController(w).Flush()
			<-req.Context().Done()
			close(gone)
		}))
		defer server.Close()
		resp, _, err := dial(Endpoint{URL: server.URL}).Do(post(t.Context(), "/"), Token{})
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		<-gone
	})
}

func TestHTTPBasePathIsPrepended(t *testing.T) {
	eachTransport(t, func(t *testing.T, dial func(Endpoint) *HTTP) {
		var got string
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { got = req.RequestURI }))
		defer server.Close()
		for _, c := range []struct{ base, path, want string }{
			{"", "/v1/chat/completions", "/v1/chat/completions"},
			{"", "/v1/models/a%2Fb?x=1&y", "/v1/models/a%2Fb?x=1&y"},
			{"/tenant", "/v1/chat/completions", "/tenant/v1/chat/completions"},
			{"/tenant/a", "/v1/models/a%2Fb?x=1", "/tenant/a/v1/models/a%2Fb?x=1"},
			{"/te%2Fnant", "/v1/models/a", "/te%2Fnant/v1/models/a"},
			{"/te%2Fnant", "/v1/models/a%2Fb", "/te%2Fnant/v1/models/a%2Fb"},
		} {
			req := post(t.Context(), c.path)
			resp, _, err := dial(Endpoint{URL: server.URL + c.base}).Do(req, Token{})
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if got != c.want {
				t.Errorf("%q under %q was sent to %q; want %q", c.path, c.base, got, c.want)
			}
			if req.URL.String() != c.path {
				t.Errorf("the caller's URL became %s", req.URL)
			}
		}
	})
}

func TestHTTPAPIKeyIsSentToItsReplicaOnly(t *testing.T) {
	eachTransport(t, func(t *testing.T, dial func(Endpoint) *HTTP) {
		var got []string
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			got = append(got, req.Header.Get("Authorization")+req.Header.Get("X-Api-Key"))
		}))
		defer server.Close()
		keyless, keyed := dial(Endpoint{URL: server.URL}), dial(Endpoint{URL: server.URL, APIKey: "own"})
		req := post(t.Context(), "/")
		req.Header.Set("Authorization", "Bearer client")
		req.Header.Set("X-Api-Key", "client's")
		send := func(h *HTTP) {
			req.Body = io.NopCloser(strings.NewReader(`{}`))
			resp, _, err := h.Do(req, Token{})
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
		send(keyed)
		send(keyless)
		keyed.Describe(Endpoint{URL: server.URL, APIKey: "new"})
		send(keyed)
		if want := []string{"Bearer own", "Bearer client" + "client's", "Bearer new"}; !slices.Equal(got, want) {
			t.Errorf("the replicas saw %q; want %q", got, want)
		}
	})
}

func TestHTTPLeavesContentEncodingAlone(t *testing.T) {
	eachTransport(t, func(t *testing.T, dial func(Endpoint) *HTTP) {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			fmt.Fprintf(w, "asked for %q", req.Header.Values("Accept-Encoding"))
		}))
		defer server.Close()
		resp, _, err := dial(Endpoint{URL: server.URL}).Do(post(t.Context(), "/"), Token{})
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if body, _ := io.ReadAll(resp.Body); string(body) != "asked for []" || resp.Header.Get("Content-Encoding") != "gzip" {
			t.Errorf("the body is %q, encoded %q", body, resp.Header.Get("Content-Encoding"))
		}
	})
}

func TestNetTransportPanicsOnGetBody(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it was sent")
		}
	}()
	req, err := http.NewRequest(http.MethodPost, "/", strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	dial(t, Endpoint{URL: "http://127.0.0.1:9"}, dialNetHTTP).Do(req, Token{})
}

func TestHTTPKeepsIdleConnections(t *testing.T) {
	eachTransport(t, func(t *testing.T, dial func(Endpoint) *HTTP) {
		const clients = 8
		var connections atomic.Int32
		arrived := make(chan struct{}, clients)
		release := make(chan struct{})
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			io.Copy(io.Discard, req.Body)
			arrived <- struct{}{}
			<-release
		}))
		server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				connections.Add(1)
			}
		}
		server.Start()
		defer server.Close()
		h := dial(Endpoint{URL: server.URL})
		for range 2 {
			var all sync.WaitGroup
			for range clients {
				all.Go(func() {
					resp, _, err := h.Do(post(t.Context(), "/"), Token{})
					if err != nil {
						t.Error(err)
						return
					}
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				})
			}
			for range clients {
				<-arrived
			}
			for range clients {
				release <- struct{}{}
			}
			all.Wait()
		}
		if connections.Load() != clients {
			t.Errorf("%d connections for %d clients in two rounds", connections.Load(), clients)
		}
	})
}

func TestHTTPProbeAcceptsAnyStatusBelow500(t *testing.T) {
	eachTransport(t, func(t *testing.T, dial func(Endpoint) *HTTP) {
		for status, alive := range map[int]bool{200: true, 204: true, 401: true, 404: true, 429: true, 500: false, 503: false, 599: false} {
			var h *HTTP
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if req.Method != http.MethodGet || req.URL.Path != "/base/health" || !h.NetHTTP() && len(req.Header) > 0 {
					t.Errorf("the probe is %s %s with %v", req.Method, req.URL, req.Header)
				}
				w.WriteHeader(status)
			}))
			h = dial(Endpoint{URL: server.URL + "/base"})
			if _, err := h.Probe(t.Context()); (err == nil) != alive {
				t.Errorf("a probe with status %d returned %v", status, err)
			}
			server.Close()
			if _, err := h.Probe(t.Context()); !errors.Is(err, ErrNoConnection) {
				t.Errorf("a probe without a server returned %v", err)
			}
		}
	})
}

func TestHTTPReserveAndCancelNeedNoServer(t *testing.T) {
	eachTransport(t, func(t *testing.T, dial func(Endpoint) *HTTP) {
		h := dial(Endpoint{URL: "http://127.0.0.1:9"})
		if _, err := h.Reserve(t.Context(), Token{}, 0); err != nil {
			t.Error(err)
		}
		if _, err := h.Cancel(t.Context(), Token{}); err != nil {
			t.Error(err)
		}
	})
}

func TestDialHTTPSelectsTheTransport(t *testing.T) {
	for _, c := range []struct {
		url, wire string
		netHTTP   bool
	}{
		{"http://engine", "", false},
		{"https://engine", "", true},
		{"http://engine", WireNetHTTP, true},
		{"https://engine", WireNetHTTP, true},
	} {
		t.Setenv(WireVariable, c.wire)
		if h := dial(t, Endpoint{URL: c.url}, DialHTTP); h.NetHTTP() != c.netHTTP {
			t.Errorf("%s with %s=%q: over net/http %t, want %t", c.url, WireVariable, c.wire, h.NetHTTP(), c.netHTTP)
		}
	}
}
