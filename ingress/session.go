package ingress

import (
	"encoding/json"
	"net/http"
	"strings"

	"berth/config"
)

// sessionID is what the client calls the conversation that a request belongs to: the first of the
// configured header fields, and then of the fields of the body, that is not empty. Empty if there
// is none.
func sessionID(c config.Session, h http.Header, p payload, body []byte) string {
	for _, name := range c.Headers {
		if id := headerLike(h, name); id != "" {
			return id
		}
	}
	for _, key := range c.BodyKeys {
		value := p.promptCacheKey
		if key == "user" {
			value = p.user
		}
		if id := text(value.of(body)); id != "" {
			return id
		}
	}
	return ""
}

// headerLike is the first value that is not empty of the fields that are called name, in lower case and with hyphens, but for
// case and underscores.
func headerLike(h http.Header, name string) string {
	if values := h[http.CanonicalHeaderKey(name)]; len(values) > 0 && values[0] != "" {
		return values[0]
	}
	for field, values := range h {
		if len(field) == len(name) && strings.Contains(field, "_") && len(values) > 0 && values[0] != "" &&
			strings.EqualFold(strings.ReplaceAll(field, "_", "-"), name) {
			return values[0]
		}
	}
	return ""
}

// text is the string that a raw JSON value holds; empty for any other value.
func text(raw []byte) string {
	var s string
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}
