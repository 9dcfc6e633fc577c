package config

import (
	"regexp"
	"slices"
	"strings"
)

var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

// sessionHeaders reads the header fields to search for the session ID.
func (r *reader) sessionHeaders(n *node) {
	var names []string
	r.list(func(item *node) {
		name := strings.ToLower(strings.ReplaceAll(item.text, "_", "-"))
		switch {
		case item.kind != text || !headerName.MatchString(item.text):
			r.wrongValue(item, "the name of a header field, like x-session-id")
		case name == "x-request-id":
			r.problemf(item.at, "x-request-id changes with every request, so it cannot identify a session; use another header")
		case slices.Contains(names, name):
			r.problemf(item.at, "duplicate %s; remove it", display(item.text))
		default:
			names = append(names, name)
		}
	})(n)
	r.config.Session.Headers = names
}

// sessionKeys reads the keys of a request body to search for the session ID.
func (r *reader) sessionKeys(n *node) {
	var keys []string
	r.list(func(item *node) {
		var key string
		r.oneOf(&key, "prompt_cache_key", "user")(item)
		switch {
		case key == "":
		case slices.Contains(keys, key):
			r.problemf(item.at, "duplicate %s; remove it", display(key))
		default:
			keys = append(keys, key)
		}
	})(n)
	r.config.Session.BodyKeys = keys
}
