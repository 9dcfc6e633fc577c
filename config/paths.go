package config

import (
	"net/url"
	"path"
	"slices"
	"strings"
)

// extraPath reads an entry of extra_paths.
func (r *reader) extraPath(n *node) {
	below := strings.TrimSuffix(n.text, "/*")
	switch {
	case n.kind != text || !strings.HasPrefix(n.text, "/") || path.Clean("/"+below) != "/"+strings.TrimPrefix(below, "/") ||
		strings.ContainsAny(below, "*?#%") || strings.ContainsFunc(n.text, unprintable):
		r.wrongValue(n, "an unescaped path like /v1/custom, or /v1/custom/* for all paths below it")
	case slices.Contains(r.config.ExtraPaths, n.text):
		r.problemf(n.at, "duplicate %s; remove it", display(n.text))
	default:
		if r.checks.ExtraPath != nil {
			if err := r.checks.ExtraPath(n.text); err != nil {
				r.problemf(n.at, "%s", err)
				return
			}
		}
		r.config.ExtraPaths = append(r.config.ExtraPaths, n.text)
	}
}

// healthCheckPath reads the path of probes.
func (r *reader) healthCheckPath(dst *string) func(*node) {
	return func(n *node) {
		if n.kind != text || !IsHealthCheckPath(n.text) {
			r.wrongValue(n, "a path like /health or /ping?full=1")
			return
		}
		*dst = n.text
	}
}

// IsHealthCheckPath reports whether s can be requested by probes: a path from the root, with a
// query or without.
func IsHealthCheckPath(s string) bool {
	if !strings.HasPrefix(s, "/") || strings.HasPrefix(s, "//") || strings.ContainsAny(s, "# ") || strings.ContainsFunc(s, unprintable) {
		return false
	}
	_, err := url.Parse(s)
	return err == nil
}
