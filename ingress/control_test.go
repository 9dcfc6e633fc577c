package ingress

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"berth/config"
	"berth/llmserver"
	"berth/llmserver/agent"
)

// operate sends a request to the admin listener.
func (f *front) operate(method, path, body string) reply {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, "http://"+f.AdminAddress()+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	resp, err := f.h1.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return reply{resp, string(text), err}
}

// controlled is the response to a control call.
type controlled struct {
	Model    string
	Replicas []struct {
		Replica string
		Status  int
		Body    any
		Error   string
	}
}

func (f *front) control(status int, method, path, body string) (c controlled) {
	f.t.Helper()
	r := f.operate(method, path, body)
	if err := json.Unmarshal([]byte(r.body), &c); err != nil || r.StatusCode != status {
		f.t.Errorf("%s %s got %d %s", method, path, r.StatusCode, r.body)
	}
	return c
}

func TestControlIsNotForClients(t *testing.T) {
	url, requests := recording(t)
	f := serve(t, modelOn("m", url))
	for _, call := range []string{
		"POST /sleep?level=1", "POST /v1/sleep", "POST /wake_up", "GET /is_sleeping", "POST /reset_prefix_cache", "POST /v1/reset_prefix_cache",
		"POST /flush_cache", "GET /flush_cache", "POST /start_profile", "POST /v1/stop_profile", "POST /v1/load_lora_adapter",
		"POST /load_lora_adapter", "POST /v1/unload_lora_adapter", "POST /update_weights_from_disk", "POST /abort_request",
		"POST /pause", "POST /resume", "DELETE /api/delete", "POST /api/pull", "POST /v1/reset%5Fprefix_cache", "PUT /sleep",
	} {
		method, path, _ := strings.Cut(call, " ")
		for _, client := range []*http.Client{f.h1, f.h2} {
			r := f.do(t.Context(), client, method, path, strings.NewReader(chat("m")))
			wantError(t, r, 403, "admin_only", "")
			if !strings.Contains(r.body, "admin listener") {
				t.Errorf("%s: the error does not name the admin listener: %s", call, r.body)
			}
		}
	}
	if len(requests) > 0 {
		t.Errorf("a replica was sent %s", (<-requests).uri)
	}
}

func TestControlReachesEveryReplica(t *testing.T) {
	var urls []string
	var requests []<-chan seen
	for range 3 {
		url, came := recording(t)
		urls, requests = append(urls, url), append(requests, came)
	}
	other, untouched := recording(t)
	m := modelOn("m", urls...)
	m.Aliases = []string{"alias"}
	f := serve(t, m, modelOn("n", other))
	for _, call := range []struct{ path, body, came string }{
		{"/sleep?level=1&model=m&tags=a%20b", "", "/sleep?level=1&tags=a%20b"},
		{"/v1/load_lora_adapter?model=alias", `{"lora_name":"l","lora_path":"/p"}`, "/v1/load_lora_adapter"},
		{"/flush_cache", `{"model" : "m"}`, "/flush_cache"},
	} {
		c := f.control(200, "POST", call.path, call.body)
		if c.Model != "m" || len(c.Replicas) != 3 {
			t.Errorf("%s: %+v", call.path, c)
		}
		for i, r := range c.Replicas {
			if s := receive(t, requests[i]); s.uri != call.came || s.body != call.body || s.length != int64(len(call.body)) {
				t.Errorf("%s came as %s with %q", call.path, s.uri, s.body)
			}
			if r.Replica != m.Replicas[i].ID || r.Status != 200 || r.Body != "ok" {
				t.Errorf("%s: %+v", call.path, r)
			}
		}
	}
	if len(untouched) > 0 {
		t.Error("a replica of another model was called")
	}
}

func TestControlReportsResponseOfEachReplica(t *testing.T) {
	says := func(status int, body string) string {
		return upstream(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			io.WriteString(w, body)
		})
	}
	f := serve(t, modelOn("m", says(200, `{"is_sleeping":false}`), says(404, "no such path"), refusing(1), says(200, "")))
	c := f.control(502, "GET", "/is_sleeping", "")
	if len(c.Replicas) != 4 {
		t.Fatalf("%+v", c)
	}
	a, b, down, empty := c.Replicas[0], c.Replicas[1], c.Replicas[2], c.Replicas[3]
	if a.Status != 200 || !reflect.DeepEqual(a.Body, map[string]any{"is_sleeping": false}) {
		t.Errorf("the first responded %+v", a)
	}
	if b.Status != 404 || b.Body != "no such path" || empty.Status != 200 || empty.Body != nil {
		t.Errorf("the others responded %+v and %+v", b, empty)
	}
	if down.Status != 0 || !strings.Contains(down.Error, "refused") {
		t.Errorf("a replica that is down: %+v", down)
	}
}

func TestControlRejectsBadCalls(t *testing.T) {
	url, requests := recording(t)
	f := serve(t, modelOn("m", url), modelOn("n", url+"/n"))
	for _, row := range []struct {
		method, path, body string
		status             int
		code, param        string
	}{
		{"POST", "/sleep", "", 400, "model_required", "model"},
		{"POST", "/sleep", "no JSON", 400, "model_required", "model"},
		{"POST", "/sleep?model=x", "", 404, "model_not_found", "model"},
		{"POST", "/v1/chat/completions", chat("m"), 404, "unknown_url", ""},
		{"GET", "/", "", 404, "unknown_url", ""},
		{"POST", "/sleep?model=m", strings.Repeat("x", 2<<20), 413, "request_too_large", ""},
	} {
		r := f.operate(row.method, row.path, row.body)
		r.Header.Set("X-Request-Id", "none here")
		wantError(t, r, row.status, row.code, row.param)
	}
	if len(requests) > 0 {
		t.Errorf("a replica was sent %s", (<-requests).uri)
	}
}

// An agent without a free slot forwards control calls.
func TestControlPassesFullAgent(t *testing.T) {
	url, requests := recording(t)
	engine, err := llmserver.DialHTTP(llmserver.Endpoint{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	a := agent.New(agent.Config{Engine: engine, Limit: 1, MaxBodyBytes: 1 << 20, ProbeTimeout: time.Second, Log: slog.New(slog.DiscardHandler)})
	server := httptest.NewServer(a)
	defer server.Close()
	m := modelOn("m", server.URL)
	m.SlotAuthority = config.ReplicaCounts
	f := serve(t, m)
	replica := f.registry.table.Load().models[0].replicas[0]
	slot, err := replica.TryReserve("a test", 0)
	if err == nil {
		err = slot.Confirm(t.Context(), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer slot.Release()
	if c := f.control(200, "POST", "/wake_up", ""); len(c.Replicas) != 1 || c.Replicas[0].Status != 200 {
		t.Errorf("%+v", c)
	}
	if s := receive(t, requests); s.uri != "/wake_up" {
		t.Errorf("the engine got %s", s.uri)
	}
}
