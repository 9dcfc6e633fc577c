package ingress

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"berth/config"
)

// withKeys adds API keys to a configuration. Each key is named like its value and may use the given
// models.
func withKeys(c *config.Config, limit int, keys map[string][]string) *config.Config {
	for key, models := range keys {
		c.Auth.Keys = append(c.Auth.Keys, config.Key{
			Name: key, Hash: sha256.Sum256([]byte(key)), Models: models, MaxOngoingRequests: limit,
		})
	}
	return c
}

// chatBy sends a chat request with a key.
func (f *front) chatBy(key, model string) reply {
	f.t.Helper()
	return f.post("/v1/chat/completions", chat(model), "Authorization", "Bearer "+key)
}

func TestAuthRequiresKey(t *testing.T) {
	f := serveConfig(t, withKeys(configured(modelOn("m", upstream(t, ok))), 0, map[string][]string{"sk-1": nil, "sk-2": nil}))
	for _, header := range [][]string{
		{"Authorization", "Bearer sk-1"}, {"Authorization", "bearer  sk-2 "}, {"X-Api-Key", "sk-1"},
		{"Authorization", "Basic c2s=", "X-Api-Key", "sk-2"}, {"Authorization", "", "X-Api-Key", "sk-2"},
	} {
		for _, client := range []*http.Client{f.h1, f.h2} {
			if r := f.do(t.Context(), client, "POST", "/v1/chat/completions", strings.NewReader(chat("m")), header...); r.body != "ok" {
				t.Errorf("with %q: %d %s", header, r.StatusCode, r.body)
			}
		}
	}
	for _, header := range [][]string{
		{}, {"Authorization", "sk-1"}, {"Authorization", "Bearer"}, {"Authorization", "Bearer sk"}, {"Authorization", "Bearer sk-12"},
		{"Authorization", "Basic sk-1"}, {"X-Api-Key", "sk-3"}, {"X-Api-Key", "Bearer sk-1"}, {"Authorization", "Bearer sk-3", "X-Api-Key", "sk-1"},
	} {
		for _, path := range []string{"/v1/chat/completions", "/v1/nothing", "/v1/sleep"} {
			r := f.post(path, chat("m"), header...)
			if wantError(t, r, 401, "invalid_api_key", ""); r.Header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("the header is %v", r.Header)
			}
			if strings.Contains(r.body, "sk-") {
				t.Errorf("the body reveals %s", r.body)
			}
		}
		for _, path := range []string{"/v1/models", "/v1/models/m", "/nothing"} {
			wantError(t, f.do(t.Context(), f.h1, "GET", path, nil, header...), 401, "invalid_api_key", "")
		}
	}
	for _, path := range []string{"/livez", "/readyz", "/health", "/metrics"} {
		if r := f.get(path); r.StatusCode != 200 {
			t.Errorf("%s: %d %s", path, r.StatusCode, r.body)
		}
	}
	if r := f.post("/v1/messages", chat("m")); r.StatusCode != 401 || !strings.Contains(r.body, `"type":"authentication_error"`) {
		t.Errorf("Anthropic's clients get %d %s", r.StatusCode, r.body)
	}
}

func TestAuthRejectsBeforeReadingBody(t *testing.T) {
	g := gated(t)
	f := serveConfig(t, withKeys(configured(modelOn("m", g.url)), 1, map[string][]string{"sk-1": nil}))
	busy := f.background(func() reply { return f.chatBy("sk-1", "m") })
	receive(t, g.arrived)
	for key, want := range map[string]struct {
		status int
		code   string
	}{"sk-1": {429, "key_limit_reached"}, "sk-2": {401, "invalid_api_key"}} {
		_, answer := f.raw("POST /v1/chat/completions HTTP/1.1\r\nHost: berth\r\nAuthorization: Bearer " + key + "\r\nContent-Length: 100\r\n\r\n{")
		wantError(t, readReply(t, answer, "POST"), want.status, want.code, "")
		body, upload := io.Pipe()
		r := f.do(t.Context(), f.h2, "POST", "/v1/chat/completions", body, "Authorization", "Bearer "+key)
		wantError(t, r, want.status, want.code, "")
		upload.Close()
	}
	g.open <- struct{}{}
	receive(t, busy)
}

func TestAuthRestrictsKeyToModels(t *testing.T) {
	a, b, adapted := modelOn("a", upstream(t, ok)), modelOn("b", upstream(t, ok)), modelOn("c", upstream(t, ok))
	a.Aliases = []string{"first"}
	f := serveConfig(t, withKeys(configured(a, b, adapted), 0, map[string][]string{"all": nil, "some": {"first", "c"}}))
	for _, name := range []string{"a", "first", "c", "c:adapter"} {
		if r := f.chatBy("some", name); r.body != "ok" {
			t.Errorf("%s: %d %s", name, r.StatusCode, r.body)
		}
	}
	for _, name := range []string{"b", "b:adapter"} {
		wantError(t, f.chatBy("some", name), 403, "model_not_allowed", "model")
		if r := f.chatBy("all", name); r.body != "ok" {
			t.Errorf("%s: %d %s", name, r.StatusCode, r.body)
		}
	}
	wantError(t, f.chatBy("some", "d"), 404, "model_not_found", "model")
	for key, want := range map[string][]string{"all": {"a", "first", "b", "c"}, "some": {"a", "first", "c"}} {
		var list struct{ Data []modelObject }
		r := f.do(t.Context(), f.h1, "GET", "/v1/models", nil, "Authorization", "Bearer "+key)
		if err := json.Unmarshal([]byte(r.body), &list); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, m := range list.Data {
			names = append(names, m.ID)
		}
		if !slices.Equal(names, want) {
			t.Errorf("%s sees %v, want %v", key, names, want)
		}
	}
	wantError(t, f.do(t.Context(), f.h1, "GET", "/v1/models/b", nil, "X-Api-Key", "some"), 404, "model_not_found", "model")
	if r := f.do(t.Context(), f.h1, "GET", "/v1/models/first", nil, "X-Api-Key", "some"); r.StatusCode != 200 {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
}

func TestAuthLimitsConcurrentRequestsOfKey(t *testing.T) {
	g := gated(t)
	c := withKeys(configured(modelOn("m", g.url, g.url+"/b")), 2, map[string][]string{"sk-1": nil})
	f := serveConfig(t, c)
	ctx, leave := context.WithCancel(t.Context())
	first := f.background(func() reply { return f.chatBy("sk-1", "m") })
	second := f.background(func() reply {
		return f.do(ctx, f.h2, "POST", "/v1/chat/completions", strings.NewReader(chat("m")), "X-Api-Key", "sk-1")
	})
	receive(t, g.arrived)
	receive(t, g.arrived)
	full := func() {
		r := f.chatBy("sk-1", "m")
		if wantError(t, r, 429, "key_limit_reached", ""); !strings.Contains(r.body, " 2 concurrent requests") {
			t.Errorf("the body is %s", r.body)
		}
		if r := f.do(t.Context(), f.h1, "GET", "/v1/models", nil, "X-Api-Key", "sk-1"); r.StatusCode != 200 {
			t.Errorf("a GET counts against the limit: %d %s", r.StatusCode, r.body)
		}
	}
	full()
	if n := f.metric(`berth_key_ongoing_requests{key="sk-1"}`); n != 2 {
		t.Errorf("the metric is %v", n)
	}
	if err := f.Apply(withKeys(configured(c.Models...), 2, map[string][]string{"sk-1": nil, "sk-2": nil})); err != nil {
		t.Fatal(err)
	}
	full() // the count survives a reload
	leave()
	receive(t, second)
	f.eventually("the disconnected request is no longer counted", func() bool {
		return f.registry.table.Load().keys[sha256.Sum256([]byte("sk-1"))].ongoing.Load() == 1
	})
	g.open <- struct{}{}
	g.open <- struct{}{}
	if r := f.chatBy("sk-1", "m"); r.body != "ok" {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
	receive(t, first)
	f.eventually("no request is ongoing", func() bool {
		return f.registry.table.Load().keys[sha256.Sum256([]byte("sk-1"))].ongoing.Load() == 0
	})
}

func TestAuthReadsKeysFromEnvironment(t *testing.T) {
	t.Setenv("BERTH_TEST_KEYS", "sk-1, team:sk-2")
	c := withKeys(configured(modelOn("m", upstream(t, ok))), 0, map[string][]string{"sk-3": nil})
	c.Auth.KeysEnv = "BERTH_TEST_KEYS"
	f := serveConfig(t, c)
	for _, key := range []string{"sk-1", "sk-2", "sk-3"} {
		if r := f.chatBy(key, "m"); r.body != "ok" {
			t.Errorf("%s: %d %s", key, r.StatusCode, r.body)
		}
	}
	wantError(t, f.chatBy("team:sk-2", "m"), 401, "invalid_api_key", "")
	for _, bad := range []string{"", ",", "sk-1,", "a:sk-1,a:sk-2", "sk-1,sk-1", "s k", ":sk-1", "sk-3"} {
		t.Setenv("BERTH_TEST_KEYS", bad)
		err := f.Apply(c)
		if err == nil || bad != "" && strings.Contains(err.Error(), "sk-") && bad != "sk-3" {
			t.Errorf("with %q: %v", bad, err)
		}
		if r := f.chatBy("sk-1", "m"); r.body != "ok" {
			t.Errorf("after a bad reload: %d %s", r.StatusCode, r.body)
		}
	}
	c.Auth.KeysEnv = ""
	if err := f.Apply(c); err != nil {
		t.Fatal(err)
	}
	wantError(t, f.chatBy("sk-1", "m"), 401, "invalid_api_key", "")
	f.mustApply(c.Models...) // without auth
	if r := f.chat("m"); r.body != "ok" {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
}

func TestAuthForwardsClientKeyOnlyWithoutOtherKeys(t *testing.T) {
	plain, requests := recording(t)
	t.Setenv("BERTH_TEST_KEY", "theirs")
	keyed := modelOn("keyed", plain)
	keyed.Replicas[0].APIKeyEnv = "BERTH_TEST_KEY"
	c := configured(modelOn("plain", plain+"/plain"), keyed)
	f := serveConfig(t, c)
	want := func(when, model, authorization, key string) {
		t.Helper()
		f.post("/v1/completions", chat(model), "Authorization", "Bearer sk-1", "X-Api-Key", "sk-1")
		s := receive(t, requests)
		if got := s.header.Get("Authorization"); got != authorization || s.header.Get("X-Api-Key") != key {
			t.Errorf("%s the replica of %s gets %q and %q", when, model, got, s.header.Get("X-Api-Key"))
		}
	}
	want("without auth", "plain", "Bearer sk-1", "sk-1")
	want("without auth", "keyed", "Bearer theirs", "")
	if err := f.Apply(withKeys(configured(c.Models...), 0, map[string][]string{"sk-1": nil})); err != nil {
		t.Fatal(err)
	}
	want("with auth", "plain", "", "")
	want("with auth", "keyed", "Bearer theirs", "")
}

func TestAuthRestrictsStoredResponsesToModelsOfKey(t *testing.T) {
	a, b := &store{name: "a", held: map[string]bool{"resp_a": true}}, &store{name: "b", held: map[string]bool{"resp_b": true}}
	f := serveConfig(t, withKeys(configured(modelOn("a", upstream(t, a.ServeHTTP)), modelOn("b", upstream(t, b.ServeHTTP))), 0,
		map[string][]string{"all": nil, "some": {"a"}}))
	get := func(key, id string) reply {
		return f.do(t.Context(), f.h1, "GET", "/v1/responses/"+id, nil, "X-Api-Key", key)
	}
	for _, id := range []string{"resp_a", "resp_b"} { // also makes berth remember the owner
		if r := get("all", id); r.StatusCode != 200 {
			t.Errorf("%s: %d %s", id, r.StatusCode, r.body)
		}
	}
	if r := get("some", "resp_a"); r.StatusCode != 200 {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
	b.took()
	wantError(t, get("some", "resp_b"), 404, "response_not_found", "response_id")
	if calls := b.took(); calls != "" {
		t.Errorf("a replica of another model was asked %q", calls)
	}
}
