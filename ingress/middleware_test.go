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
)

func TestAPanicIsAnAnswerOrABrokenOne(t *testing.T) {
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
		t.Errorf("the log does not tell of the panic:\n%s", log)
	}
	if r := get("/after"); r.err == nil || r.body != "half" {
		t.Errorf("the client takes %q for whole: %v", r.body, r.err)
	}
	f.log.take()
	if r := get("/abort"); r.err == nil {
		t.Errorf("the client got %d %q", r.StatusCode, r.body)
	}
	if log := f.log.take(); log != "" {
		t.Errorf("an abort is no accident, yet logged:\n%s", log)
	}
	if n := f.metric(`berth_requests_total{model="",route="other",status="500"}`); n != 1 {
		t.Errorf("counted %v failures", n)
	}
}

func TestAPanicIsAnsweredThoughTheBodyNeverComes(t *testing.T) {
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
	f.log.take() // the panic is told there
	if resp.StatusCode != http.StatusInternalServerError || !resp.Close {
		t.Errorf("answered %d, closing %t; want 500 and the end of the connection", resp.StatusCode, resp.Close)
	}
}

// Who knows what is still at work behind a panic.
func TestAVisitIsUsedAgainAsNewAndNeverAfterAPanic(t *testing.T) {
	f := serve(t, modelOn("m", refusing(1)))
	lost := make(map[*requestState]bool)
	visited := func(c *gin.Context) *requestState {
		v := stateOf(c)
		if lost[v] {
			t.Error("a visit that a panic ended is used again")
		}
		if v.key != nil || v.model != "" || v.exchange.Server != nil || v.exchange.attempts > 0 || v.status != 0 || v.code != "" || v.cut {
			t.Errorf("of a request before there is left model %q, status %d, code %q", v.model, v.status, v.code)
		}
		v.exchanging(f.Server, c, phaseBody).attempts = 1
		v.model, v.status, v.code, v.cut = "m", 299, "code", true
		return v
	}
	routes := f.routes()
	routes.GET("/return", func(c *gin.Context) { visited(c) })
	routes.GET("/panic", func(c *gin.Context) {
		lost[visited(c)] = true
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
		t.Errorf("%d visits ended in 50 panics", len(lost))
	}
}

func TestARequestIDIsEchoedOrMinted(t *testing.T) {
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
			t.Errorf("of %q became %q for the client and %q for the replica", sent, r.Header["X-Request-Id"], came)
		}
		if r := f.do(t.Context(), f.h2, "GET", "/nothing", nil, "X-Request-Id", sent); kept != (r.Header.Get("X-Request-Id") == sent) {
			t.Errorf("an error echoes %q for %q", r.Header["X-Request-Id"], sent)
		}
	}
}
