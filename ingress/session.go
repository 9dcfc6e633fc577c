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
	if id := firstLike(h, c.Headers); id != "" {
		return id
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

// firstLike is the value of the field that comes first in names, which are in lower case and with hyphens. Fields that
// are empty do not count, case and underscores make no difference, but of two fields that differ in these the one
// with the hyphens is meant. It walks the header once: to look each name up would take its canonical form.
func firstLike(h http.Header, names []string) (value string) {
	best := 2 * len(names)
	for field, values := range h {
		if len(values) == 0 || values[0] == "" {
			continue
		}
		for i, name := range names {
			if 2*i >= best || !like(field, name) {
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

// like tells whether a field is called name but for case and underscores.
func like(field, name string) bool {
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

// text is the string that a raw JSON value holds; empty for any other value.
func text(raw []byte) string {
	var s string
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}
