package ingress

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"

	"berth/config"
	"berth/llmserver"
)

// wantError checks that r is an OpenAI error object. An empty param stands for null.
func wantError(t *testing.T, r reply, status int, code, param string) {
	t.Helper()
	if r.err != nil || r.StatusCode != status {
		t.Errorf("got status %d, error %v and %s; want %d %s", r.StatusCode, r.err, r.body, status, code)
		return
	}
	var outer map[string]map[string]any
	if err := json.Unmarshal([]byte(r.body), &outer); err != nil {
		t.Fatalf("%v in %s", err, r.body)
	}
	e := outer["error"]
	if len(outer) != 1 || len(e) != 4 || !strings.HasPrefix(r.body, `{"error":{`) {
		t.Errorf("not an error object with four keys: %s", r.body)
	}
	if e["code"] != code || e["type"] == "" || e["message"] == "" {
		t.Errorf("got %s, want the code %s", r.body, code)
	}
	if got, isNull := e["param"], param == ""; isNull && got != nil || !isNull && got != param {
		t.Errorf("got %s, want the param %q", r.body, param)
	}
	h := r.Header
	if h.Get("Content-Type") != "application/json" || h.Get("X-Request-Id") == "" || r.ContentLength != int64(len(r.body)) {
		t.Errorf("the header of %s is %v", r.body, h)
	}
	if removed := code == "model_removed"; removed != (h.Get("X-Should-Retry") == "false") {
		t.Errorf("the header of %s is %v", r.body, h)
	}
	if status == 429 || status == 503 && code != "model_removed" {
		after, err := strconv.Atoi(h.Get("Retry-After"))
		exact, err2 := strconv.Atoi(h.Get("Retry-After-Ms"))
		if err != nil || err2 != nil || exact < 1000 || exact > 60_000 || after != (exact+999)/1000 {
			t.Errorf("the Retry-After of %s is %q s, %q ms", code, h.Get("Retry-After"), h.Get("Retry-After-Ms"))
		}
	}
}

func TestErrorTableIsComplete(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	codes := make(map[string]bool)
	for _, row := range errorTable {
		recorder := httptest.NewRecorder()
		recorder.Header().Set("X-Request-Id", "id")
		c, _ := gin.CreateTestContext(recorder)
		enter(c)
		c.Request = httptest.NewRequest("POST", "/", nil)
		writeError(c, fmt.Errorf("replica 10.0.0.1:8000: %w", row.err))
		r := reply{recorder.Result(), recorder.Body.String(), nil}
		r.ContentLength = int64(recorder.Body.Len())
		wantError(t, r, row.status, row.code, row.param)
		codes[row.code] = true
		if row.message != "" && strings.Contains(r.body, "10.0.0.1") {
			t.Errorf("%s names an address: %s", row.code, r.body)
		}
	}
	if len(codes) < 15 {
		t.Errorf("the table has only %d codes", len(codes))
	}
}

func TestErrorUnknownRevealsNothing(t *testing.T) {
	a := toAPIError(fmt.Errorf("secret at 10.0.0.1"))
	if a.status != 500 || a.code != "internal_error" || strings.Contains(a.message, "secret") {
		t.Errorf("got %+v", a)
	}
}

func TestErrorWrongMethodListsAllowed(t *testing.T) {
	f := serve(t, modelOn("m", refusing(1)))
	if allow := f.get("/v1/completions").Header.Get("Allow"); allow != "POST" {
		t.Errorf("Allow is %q", allow)
	}
	if allow := f.do(t.Context(), f.h1, "DELETE", "/models/m", nil).Header.Get("Allow"); !strings.Contains(allow, "GET") {
		t.Errorf("Allow is %q", allow)
	}
}

// Errors that header and path decide are sent before any byte of the body.
func TestErrorRespondsBeforeBodyArrives(t *testing.T) {
	c := configured(modelOn("m", refusing(1)))
	c.HTTP.MaxBodyBytes = 100
	f := serveConfig(t, c)
	for _, row := range []struct {
		path, headers string
		status        int
		code          string
	}{
		{"/nothing", "Content-Length: 1000000\r\n", 404, "unknown_url"},
		{"/nothing", "Content-Length: 10\r\n", 404, "unknown_url"},
		{"/nothing", "Transfer-Encoding: chunked\r\n", 404, "unknown_url"},
		{"/v1//completions", "Content-Length: 10\r\n", 404, "unknown_url"},
		{"/livez", "Content-Length: 10\r\n", 405, "method_not_allowed"},
		{"/v1/completions", "Content-Length: 1000000\r\n", 413, "request_too_large"},
		{"/v1/completions", "Content-Length: 101\r\n", 413, "request_too_large"},
		{"/v1/completions", "Content-Type: text/plain\r\nContent-Length: 50\r\n", 415, "unsupported_content_type"},
	} {
		t.Run(row.code, func(t *testing.T) {
			t.Parallel()
			_, answer := f.raw("POST " + row.path + " HTTP/1.1\r\nHost: berth\r\n" + row.headers + "\r\n")
			wantError(t, readReply(t, answer, "POST"), row.status, row.code, "")
			if _, err := answer.ReadByte(); err != io.EOF {
				t.Errorf("the connection stays open although its body is still being sent: %v", err)
			}
		})
	}
}

func TestErrorBodyOfUnknownLengthTooLarge(t *testing.T) {
	f := serve(t, modelOn("m", refusing(1)))
	for _, client := range []*http.Client{f.h1, f.h2} {
		body := io.MultiReader(strings.NewReader(`{"model":"`), strings.NewReader(strings.Repeat("m", 1<<20)))
		wantError(t, f.do(t.Context(), client, "POST", "/v1/completions", body), 413, "request_too_large", "")
	}
}

func TestErrorBodyTimeout(t *testing.T) {
	c := configured(modelOn("m", refusing(1)))
	c.HTTP.BodyTimeout = 20 * time.Millisecond
	f := serveConfig(t, c)
	_, answer := f.raw("POST /v1/completions HTTP/1.1\r\nHost: berth\r\nContent-Length: 50\r\n\r\n{")
	wantError(t, readReply(t, answer, "POST"), 408, "body_timeout", "")
	if _, err := answer.ReadByte(); err != io.EOF {
		t.Errorf("the connection is not closed: %v", err)
	}
}

func TestErrorIncompleteBody(t *testing.T) {
	f := serve(t, modelOn("m", refusing(1)))
	_, answer := f.raw("POST /v1/completions HTTP/1.1\r\nHost: berth\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"mod\r\nno chunk\r\n")
	wantError(t, readReply(t, answer, "POST"), 400, "incomplete_body", "")
}

func TestErrorRequestMemoryExhausted(t *testing.T) {
	g := gated(t)
	c := configured(modelOn("m", g.url))
	c.HTTP.MaxBufferedBytes = 24 << 10
	f := serveConfig(t, c)
	long := `{"prompt":"` + strings.Repeat("x", 10<<10) + `"}`
	first := f.background(func() reply { return f.post("/v1/completions", long) })
	receive(t, g.arrived)
	wantError(t, f.post("/v1/completions", long), 503, "request_memory_exhausted", "")
	g.open <- struct{}{}
	if r := receive(t, first); r.body != "ok" {
		t.Errorf("the first got %d %s", r.StatusCode, r.body)
	}
	f.eventually("the memory is released", func() bool { return f.metric("berth_buffered_bytes") == 0 })
}

func TestErrorQueueFull(t *testing.T) {
	g := gated(t)
	impatient, short := narrow(modelOn("impatient", g.url)), narrow(modelOn("short", strings.Replace(g.url, "127.0.0.1", "localhost", 1)))
	impatient.QueueTimeout = 20 * time.Millisecond
	short.MaxQueuedRequests = 0
	f := serve(t, impatient, short)
	var held []<-chan reply
	for _, id := range []string{"impatient", "short"} {
		held = append(held, f.background(func() reply { return f.chat(id) }))
		receive(t, g.arrived)
	}
	wantError(t, f.chat("impatient"), 503, "queue_timeout", "")
	wantError(t, f.chat("short"), 429, "queue_full", "")
	g.open <- struct{}{}
	g.open <- struct{}{}
	for _, first := range held {
		receive(t, first)
	}
}

func TestErrorUnavailableModelGivesReasons(t *testing.T) {
	few, many, strict := modelOn("few", refusing(1), refusing(2)), modelOn("many"), modelOn("strict", refusing(9))
	for i := range 3 {
		many.Replicas = append(many.Replicas, config.Replica{ID: fmt.Sprint("r", i), URL: refusing(3 + i), MaxOngoingRequests: 2})
	}
	strict.MaxAttempts = 1
	f := serve(t, few, many, strict)
	for model, names := range map[string][]string{"few": {"of 2 replicas", "a: ", "b: "}, "many": {"r0: ", "r1: ", "r2: "}, "strict": {"a: "}} {
		for range 2 { // at the second the replicas are down
			r := f.chat(model)
			wantError(t, r, 503, "no_replica_available", "")
			if !strings.Contains(r.body, "refused") || slices.ContainsFunc(names, func(n string) bool { return !strings.Contains(r.body, n) }) {
				t.Errorf("the response lacks one of %q: %s", names, r.body)
			}
			if strings.Contains(r.body, "127.0.0") {
				t.Errorf("the response names an address: %s", r.body)
			}
		}
	}
}

func TestErrorDoesNotWaitForBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{log: slog.New(slog.DiscardHandler), metrics: newMetrics()}
		s.registry = newRegistry(s.metrics, s.log)
		_, pipes := serveOverPipes(t, false, s.routes().ServeHTTP)
		conn, err := pipes.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "POST /nothing HTTP/1.1\r\nHost: berth\r\nContent-Length: 10\r\n\r\n")
		sent, answer := time.Now(), bufio.NewReader(conn)
		wantError(t, readReply(t, answer, "POST"), 404, "unknown_url", "")
		if took := time.Since(sent); took != 0 {
			t.Errorf("the response came after %v", took)
		}
		if _, err := answer.ReadByte(); err != io.EOF || time.Since(sent) != lingerTimeout {
			t.Errorf("%v after the response the connection returned %v, want EOF", time.Since(sent), err)
		}
	})
}

func TestErrorQueueDeadlineHidesEarlierAttempts(t *testing.T) {
	failed := fmt.Errorf("replica a: %w: dial tcp 10.0.0.1:8000: connection refused", llmserver.ErrNoConnection)
	a := toAPIError(fmt.Errorf("%w; %w", failed, errQueueDeadline))
	if a.code != "queue_timeout" || a.message != errQueueDeadline.Error() {
		t.Errorf("the client reads %s: %s", a.code, a.message)
	}
}
