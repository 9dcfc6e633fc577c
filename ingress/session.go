package ingress

import (
	"net/http"
	"strings"

	"berth/config"
	"berth/internal/openai"
)

// sessionID returns the client's ID of the conversation that a request belongs to: the first value
// that is not empty of the configured header fields and then of the configured fields of the body.
// It returns "" if there is none.
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

// firstHeader returns the value of the header field that comes first in names, which are in lower
// case and with hyphens. Empty fields do not count. Names compare as equalFoldName does; of two
// fields with the same name the one with hyphens wins. It walks the header once, because a lookup
// of each name would have to convert it to its canonical form.
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

// equalFoldName reports whether a header field has that name, which is in lower case. Case does not
// matter, and an underscore equals a hyphen.
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
