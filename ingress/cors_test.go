package ingress

import (
	"net/http"
	"strings"
	"testing"

	"berth/config"
)

func withOrigins(c *config.Config, origins ...string) *config.Config {
	c.HTTP.CORS = &config.CORS{AllowedOrigins: origins}
	return c
}

// ask sends a preflight request.
func (f *front) ask(path, origin string) reply {
	f.t.Helper()
	return f.do(f.t.Context(), f.h1, "OPTIONS", path, nil,
		"Origin", origin, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,x-stainless-os")
}

func TestCORSAllowsConfiguredOrigins(t *testing.T) {
	url, requests := recording(t)
	f := serveConfig(t, withKeys(withOrigins(configured(modelOn("m", url)), "https://a.example", "http://localhost:3000"), 0, map[string][]string{"sk-1": nil}))
	for _, path := range []string{"/v1/chat/completions", "/v1/models", "/chat/completions", "/v1/responses/r1"} {
		for _, origin := range []string{"https://a.example", "http://localhost:3000"} {
			r := f.ask(path, origin)
			h := r.Header
			if r.StatusCode != 204 || r.body != "" || h.Get("Access-Control-Allow-Origin") != origin || h.Get("Vary") != "Origin" ||
				!strings.Contains(h.Get("Access-Control-Allow-Methods"), "POST") || h.Get("Access-Control-Allow-Headers") != "authorization,x-stainless-os" {
				t.Errorf("%s from %s: %d %v", path, origin, r.StatusCode, h)
			}
		}
	}
	for _, client := range []*http.Client{f.h1, f.h2} {
		r := f.do(t.Context(), client, "POST", "/v1/chat/completions", strings.NewReader(chat("m")), "Origin", "https://a.example", "Authorization", "Bearer sk-1")
		if r.body != "ok" || r.Header.Get("Access-Control-Allow-Origin") != "https://a.example" || r.Header.Get("Access-Control-Expose-Headers") != "*" {
			t.Errorf("got %d %s, %v", r.StatusCode, r.body, r.Header)
		}
		if s := receive(t, requests); s.header.Get("Origin") != "" {
			t.Errorf("the replica received Origin %s", s.header.Get("Origin"))
		}
	}
	r := f.do(t.Context(), f.h1, "POST", "/v1/chat/completions", strings.NewReader(chat("m")), "Origin", "https://a.example")
	if wantError(t, r, 401, "invalid_api_key", ""); r.Header.Get("Access-Control-Allow-Origin") != "https://a.example" {
		t.Errorf("a page cannot read the error: %v", r.Header)
	}
}

func TestCORSRejectsOtherOrigins(t *testing.T) {
	f := serveConfig(t, withOrigins(configured(modelOn("m", upstream(t, ok))), "https://a.example"))
	for _, origin := range []string{"https://b.example", "http://a.example", "https://a.example:8443", "https://a.example.org", "null"} {
		if r := f.ask("/v1/chat/completions", origin); r.StatusCode != 405 || r.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %d %v", origin, r.StatusCode, r.Header)
		}
	}
	if r := f.chat("m"); r.body != "ok" || r.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("without an origin: %d %s, %v", r.StatusCode, r.body, r.Header)
	}
	if r := f.do(t.Context(), f.h1, "OPTIONS", "/v1/chat/completions", nil, "Origin", "https://a.example"); r.StatusCode != 405 {
		t.Errorf("an OPTIONS that is no preflight: %d", r.StatusCode)
	}
}

func TestCORSWildcardAllowsEveryOrigin(t *testing.T) {
	f := serveConfig(t, withOrigins(configured(modelOn("m", upstream(t, ok))), "*"))
	if r := f.ask("/v1/chat/completions", "null"); r.StatusCode != 204 || r.Header.Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("got %d %v", r.StatusCode, r.Header)
	}
}

func TestCORSOffSetsNoHeaders(t *testing.T) {
	url, requests := recording(t)
	f := serve(t, modelOn("m", url))
	if r := f.ask("/v1/chat/completions", "https://a.example"); r.StatusCode != 405 {
		t.Errorf("got %d %v", r.StatusCode, r.Header)
	}
	r := f.post("/v1/chat/completions", chat("m"), "Origin", "https://a.example")
	if s := receive(t, requests); s.header.Get("Origin") != "https://a.example" || r.Header.Get("Vary") != "" {
		t.Errorf("the replica received Origin %q, the client %v", s.header.Get("Origin"), r.Header)
	}
}
