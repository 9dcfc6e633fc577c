package ingress

import (
	"net/http"
	"testing"

	"berth/config"
	"berth/internal/openai"
)

func TestSessionIDIsTheFirstConfiguredValueThatIsNotEmpty(t *testing.T) {
	defaults := config.Default().Session
	withUser := config.Session{Headers: []string{"x-session-id"}, BodyKeys: []string{"prompt_cache_key", "user"}}
	for _, c := range []struct {
		name    string
		session config.Session
		header  http.Header
		body    string
		want    string
	}{
		{"none", defaults, http.Header{}, `{}`, ""},
		{"a header", defaults, http.Header{"X-Session-Id": {"a"}}, `{"prompt_cache_key":"k"}`, "a"},
		{"the order of the list", defaults, http.Header{"X-Session-Affinity": {"c"}, "X-Correlation-Id": {"b"}}, `{}`, "b"},
		{"an empty header", defaults, http.Header{"X-Session-Id": {""}, "X-Correlation-Id": {"b"}}, `{}`, "b"},
		{"underscores", defaults, http.Header{"X_session_id": {"u"}}, `{}`, "u"},
		{"mixed underscores", defaults, http.Header{"X-Session_id": {"u"}}, `{}`, "u"},
		{"another name of the same length", defaults, http.Header{"X_session_ix": {"u"}}, `{}`, ""},
		{"the request id", defaults, http.Header{"X-Request-Id": {"r"}}, `{}`, ""},
		{"the body", defaults, http.Header{}, `{"prompt_cache_key":"k\u0031"}`, "k1"},
		{"a body key that is no string", defaults, http.Header{}, `{"prompt_cache_key":17}`, ""},
		{"a user, not configured", defaults, http.Header{}, `{"user":"someone"}`, ""},
		{"a user, configured", withUser, http.Header{}, `{"user":"someone"}`, "someone"},
		{"the order of the body keys", withUser, http.Header{}, `{"user":"someone","prompt_cache_key":"k"}`, "k"},
		{"a header that is not configured", withUser, http.Header{"X-Correlation-Id": {"b"}}, `{}`, ""},
	} {
		f, err := openai.ScanBody(http.Header{}, []byte(c.body), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := sessionID(c.session, c.header, f, []byte(c.body)); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
