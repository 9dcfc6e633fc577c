package ingress

import (
	"net/http"
	"strings"

	"berth/config"
	"berth/internal/openai"
)

// sessionID returns the client's ID of the conversation, or "": the first non-empty value among the
// configured header fields, then among the configured fields of the body.
func sessionID(c config.Session, h http.Header, f openai.Fields, body []byte) string {
	if id := firstHeader(h, c.Headers); id != "" {
		return id
	}
	for _, key := range c.BodyKeys {
		value := f.PromptCacheKey
		if key == "user" {
			value = f.User
		}
		if id := value.Text(body); id != "" {
			return id
		}
	}
	return ""
}

// firstHeader returns the non-empty value of the header field that comes first in names, which are
// in lower case with hyphens. Names compare as in equalFoldName; of two fields with the same name
// the one with hyphens wins. The header is walked once, because a lookup per name would need the
// canonical form of each.
func firstHeader(h http.Header, names []string) (value string) {
	best := 2 * len(names)
	for field, values := range h {
		if len(values) == 0 || values[0] == "" {
			continue
		}
		for i, name := range names {
			if 2*i >= best || !equalFoldName(field, name) {
				continue
			}
			rank := 2 * i
			if strings.Contains(field, "_") {
				rank++
			}
			if rank < best {
				best, value = rank, values[0]
			}
		}
	}
	return value
}

// equalFoldName reports whether a header field has the given name, which is in lower case. Case
// does not matter, and an underscore equals a hyphen.
func equalFoldName(field, name string) bool {
	if len(field) != len(name) {
		return false
	}
	for i := range len(field) {
		switch c := field[i]; {
		case c == name[i], c == '_' && name[i] == '-', 'A' <= c && c <= 'Z' && c|0x20 == name[i]:
		default:
			return false
		}
	}
	return true
}
