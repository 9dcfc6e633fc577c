package ingress

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"berth/internal/openai"
)

func TestRoutePathsAreServedWithAndWithoutTheVersion(t *testing.T) {
	c := configured(modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Write([]byte(r.Method + " " + r.RequestURI))
	})))
	c.ExtraPaths = []string{"/v1/anything/at/all", "/v1/a/*", "/v1/a?b%"}
	f := serveConfig(t, c)
	for path, want := range map[string]string{
		"/completions?a=%2F&b":    "/v1/completions?a=%2F&b",
		"/v1/audio/speech?x=1&&y": "/v1/audio/speech?x=1&&y",
		"/v1/completions?":        "/v1/completions",
		"/v1/completions??a?b":    "/v1/completions??a?b",
		"/v1/a%2Fb/rerank":        "/v1/a%2Fb/rerank",
		"/v1/a%3Fb%25":            "/v1/a%3Fb%25",
		"/v1/anything/at/all":     "/v1/anything/at/all",
		"/v1/tokenize":            "/v1/tokenize",
	} {
		if r := f.post(path, chat("m")); r.body != "POST "+want {
			t.Errorf("POST %s came as %s", path, r.body)
		}
	}
	for path := range openai.InferencePaths() {
		want := openai.VersionPrefix(path) + path
		if r := f.post(path, chat("m")); r.body != "POST "+want {
			t.Errorf("POST %s came as %s", path, r.body)
		}
		if r := f.post("/v1"+path, chat("m")); r.body != "POST /v1"+path {
			t.Errorf("POST /v1%s came as %s", path, r.body)
		}
		if r := f.post(path, `{"x":1}`); r.body != "POST "+want {
			t.Errorf("POST %s without a model came as %s", path, r.body)
		}
	}
}

func TestRouteRejectsUnknownPaths(t *testing.T) {
	url, requests := recording(t)
	f := serve(t, modelOn("m", url))
	for _, path := range []string{"/v1/model/load", "/v1/lora/load", "/v1/internal/model/load", "/v1/unload", "/v1/adapters/load", "/v1/chat/completions/x"} {
		for _, body := range []string{chat("m"), `{"model":"x"}`, "{}", "", "["} {
			r := f.post(path, body)
			if wantError(t, r, 404, "unknown_url", ""); !strings.Contains(r.body, "extra_paths") {
				t.Errorf("%s got %s", path, r.body)
			}
		}
	}
	for _, path := range []string{"/invented", "/v3/rerank", "/internal/slots", "/simulated/reset", "/v1/../sleep", "/v1", "/"} {
		wantError(t, f.post(path, chat("m")), 404, "unknown_url", "")
	}
	if len(requests) > 0 {
		t.Errorf("a replica was sent %s", (<-requests).uri)
	}
}

func TestRouteAdmitsExtraPaths(t *testing.T) {
	url, requests := recording(t)
	c := configured(modelOn("m", url))
	c.ExtraPaths = []string{"/v1/custom", "/plugins/*", "/v1/open/*", "/*"}
	all := serveConfig(t, c)
	some := *c
	some.ExtraPaths = c.ExtraPaths[:3]
	f := serveConfig(t, &some)
	for _, path := range []string{"/v1/custom", "/plugins/a/b?c", "/v1/open/x"} {
		if r := f.post(path, chat("m")); r.body != "ok" {
			t.Errorf("%s got %d %s", path, r.StatusCode, r.body)
		}
		if s := receive(t, requests); s.uri != path {
			t.Errorf("%s came as %s", path, s.uri)
		}
	}
	if r := all.post("/any/thing", chat("m")); r.body != "ok" {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
	receive(t, requests)
	for _, path := range []string{"/v1/custom/", "/v1/custom/x", "/v1/customs", "/custom", "/plugins", "/plugins/", "/plugins/../x", "/v1/open"} {
		wantError(t, f.post(path, chat("m")), 404, "unknown_url", "")
	}
	for _, path := range []string{"/sleep", "/v1/load_lora_adapter", "/update_weights"} {
		wantError(t, all.post(path, chat("m")), 403, "admin_only", "")
	}
	r := f.get("/plugins/x")
	if wantError(t, r, 405, "method_not_allowed", ""); r.Header.Get("Allow") != "POST" {
		t.Errorf("a GET got the header %v", r.Header)
	}
	if len(requests) > 0 {
		t.Errorf("a replica was sent %s", (<-requests).uri)
	}
}

func TestRouteKeepsTheBasePathOfAReplica(t *testing.T) {
	c := configured(modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Write([]byte(r.RequestURI))
	})+"/engine"))
	c.ExtraPaths = []string{"/v1/a/*"}
	f := serveConfig(t, c)
	for path, want := range map[string]string{
		"/completions": "/engine/v1/completions", "/v1/a%2Fb": "/engine/v1/a%2Fb", "/tokenize": "/engine/tokenize",
	} {
		if r := f.post(path, chat("m")); r.body != want {
			t.Errorf("POST %s came as %s", path, r.body)
		}
	}
}

// An empty 404 of a replica passes unchanged, although gin has its own text for them.
func TestRoutePassesEmptyResponses(t *testing.T) {
	for _, status := range []int{200, 404, 405} {
		c := configured(modelOn("m", upstream(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })))
		c.ExtraPaths = []string{"/v1/extra", "/extra"}
		f := serveConfig(t, c)
		for _, path := range []string{"/v1/completions", "/tokenize", "/v1/extra", "/extra"} {
			if r := f.post(path, chat("m")); r.StatusCode != status || r.body != "" {
				t.Errorf("%d of %s came as %d %q", status, path, r.StatusCode, r.body)
			}
		}
	}
}

func TestRouteDistinguishesWrongMethodsFromUnknownPaths(t *testing.T) {
	f := serve(t, modelOn("m", refusing(1)))
	for call, status := range map[string]int{
		"GET /v1/completions": 405, "PUT /rerank": 405, "DELETE /v1/models/m": 405, "POST /models": 405, "PATCH /v1/chat/completions": 405,
		"OPTIONS /v1/embeddings": 405, "GET /tokenize": 405,
		"GET /v1/nothing": 404, "PUT /v1/nothing": 404, "GET /": 404, "DELETE /x": 404,
	} {
		method, path, _ := strings.Cut(call, " ")
		r := f.do(t.Context(), f.h1, method, path, nil)
		code := map[int]string{404: "unknown_url", 405: "method_not_allowed"}[status]
		wantError(t, r, status, code, "")
		if allow := r.Header.Get("Allow"); (allow != "") != (status == 405) {
			t.Errorf("%s got Allow: %q", call, allow)
		}
	}
}

func TestAPIErrorOnAnthropicPathsHasAnthropicForm(t *testing.T) {
	f := serve(t, modelOn("m", refusing(1)), modelOn("n", refusing(2)))
	for _, row := range []struct {
		method, path, body string
		status             int
		kind               string
	}{
		{"POST", "/v1/messages", "{", 400, "invalid_request_error"},
		{"POST", "/messages", `{"model":"x"}`, 404, "not_found_error"},
		{"POST", "/v1/messages/count_tokens", "{}", 400, "invalid_request_error"},
		{"GET", "/v1/messages", "", 405, "invalid_request_error"},
		{"POST", "/v1/messages", strings.Repeat("x", 2<<20), 413, "request_too_large"},
		{"POST", "/v1/messages", chat("m"), 503, "overloaded_error"},
	} {
		r := f.do(t.Context(), f.h1, row.method, row.path, strings.NewReader(row.body))
		decoder := json.NewDecoder(strings.NewReader(r.body))
		decoder.DisallowUnknownFields()
		var e anthropicError
		if err := decoder.Decode(&e); err != nil || r.StatusCode != row.status {
			t.Errorf("%s %s got %d %s: %v", row.method, row.path, r.StatusCode, r.body, err)
		}
		if e.Type != "error" || e.Error.Type != row.kind || e.Error.Message == "" || e.RequestID == "" || e.RequestID != r.Header.Get("X-Request-Id") {
			t.Errorf("%s %s got %s", row.method, row.path, r.body)
		}
	}
	if r := f.post("/v1/messagesx", `{"model":"x"}`); !strings.HasPrefix(r.body, `{"error":`) {
		t.Errorf("another path got %s", r.body)
	}
}
