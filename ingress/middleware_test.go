package ingress

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"berth/ingress/telemetry"
)

func TestRecoverPanicRespondsOrAborts(t *testing.T) {
	f := serve(t, modelOn("m", refusing(1)))
	routes := f.routes()
	routes.GET("/before", func(*gin.Context) { panic("in a handler") })
	routes.GET("/after", func(c *gin.Context) {
		c.Writer.WriteString("half")
		c.Writer.Flush()
		panic("in a handler")
	})
	routes.GET("/abort", func(*gin.Context) { panic(http.ErrAbortHandler) })
	server := httptest.NewServer(routes)
	defer server.Close()
	get := func(path string) reply {
		resp, err := http.Get(server.URL + path)
		if err != nil {
			return reply{&http.Response{}, "", err}
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return reply{resp, string(body), err}
	}
	wantError(t, get("/before"), 500, "internal_error", "")
	if log := f.log.take(); !strings.Contains(log, "in a handler") || !strings.Contains(log, "middleware_test.go") {
		t.Errorf("the log does not have the panic:\n%s", log)
	}
	if r := get("/after"); r.err == nil || r.body != "half" {
		t.Errorf("%q looks complete to the client: %v", r.body, r.err)
	}
	f.log.take()
	if r := get("/abort"); r.err == nil {
		t.Errorf("the client got %d %q", r.StatusCode, r.body)
	}
	if log := f.log.take(); log != "" {
		t.Errorf("an abort on purpose is logged:\n%s", log)
	}
	if n := f.metric(`berth_requests_total{model="",route="other",status="500"}`); n != 1 {
		t.Errorf("counted %v failures", n)
	}
}

func TestRecoverPanicRespondsWithoutReadingTheBody(t *testing.T) {
	f := serve(t, modelOn("m", refusing(1)))
	routes := f.routes()
	routes.POST("/before", func(*gin.Context) { panic("in a handler") })
	server := httptest.NewServer(routes)
	defer server.Close()
	c, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "POST /before HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n")
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	f.log.take() // the panic is logged at level Error
	if resp.StatusCode != http.StatusInternalServerError || !resp.Close {
		t.Errorf("got status %d, close %t; want 500 and close", resp.StatusCode, resp.Close)
	}
}

// A state comes from the pool zeroed. After a panic it does not go back, because something may
// still use it.
func TestRequestStateIsReusedZeroedAndNeverAfterAPanic(t *testing.T) {
	f := serve(t, modelOn("m", refusing(1)))
	lost := make(map[*requestState]bool)
	use := func(c *gin.Context) *requestState {
		s := stateOf(c)
		if lost[s] {
			t.Error("the state of a request that panicked is reused")
		}
		r := &s.record
		if s.key != nil || s.proxied.Server != nil || s.proxied.record != nil || r.Proxied || r.Model != "" || r.Attempts > 0 || r.Status != 0 || r.ErrorCode != "" || r.Truncated {
			t.Errorf("left of an earlier request: %+v", *r)
		}
		s.newProxyRequest(f.Server, c, telemetry.PhaseBody).record.Attempts = 1
		r.Model, r.Status, r.ErrorCode, r.Truncated = "m", 299, "code", true
		return s
	}
	routes := f.routes()
	routes.GET("/return", func(c *gin.Context) { use(c) })
	routes.GET("/panic", func(c *gin.Context) {
		lost[use(c)] = true
		panic(http.ErrAbortHandler)
	})
	ask := func(path string) {
		defer func() { _ = recover() }()
		routes.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil))
	}
	for range 50 {
		ask("/panic")
		ask("/return")
		ask("/return")
	}
	if len(lost) != 50 {
		t.Errorf("%d states were lost in 50 panics", len(lost))
	}
}

func TestRequestIDIsEchoedOrNew(t *testing.T) {
	seen := make(chan string, 1)
	f := serve(t, modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Get("X-Request-Id")
		w.Header().Set("X-Request-Id", "the engine's own")
	})))
	for sent, kept := range map[string]bool{
		"":                       false,
		"my-id_1":                true,
		strings.Repeat("x", 128): true,
		strings.Repeat("x", 129): false,
		"two words":              false,
		"ümlaut":                 false,
	} {
		r := f.post("/v1/completions", chat("m"), "X-Request-Id", sent)
		id, came := r.Header.Get("X-Request-Id"), receive(t, seen)
		if kept != (id == sent) || id == "" || came != id || len(r.Header["X-Request-Id"]) != 1 {
			t.Errorf("for %q the client got %q and the replica %q", sent, r.Header["X-Request-Id"], came)
		}
		if r := f.do(t.Context(), f.h2, "GET", "/nothing", nil, "X-Request-Id", sent); kept != (r.Header.Get("X-Request-Id") == sent) {
			t.Errorf("an error response has the ID %q for %q", r.Header["X-Request-Id"], sent)
		}
	}
}
