package config

import (
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
		r.mismatch(n, "a path like /v1/custom, or /v1/custom/* for all below it, decoded")
	case slices.Contains(r.config.ExtraPaths, n.text):
		r.fail(n.at, "%s is in the list already; remove it", display(n.text))
	default:
		if r.checks.ExtraPath != nil {
			if err := r.checks.ExtraPath(n.text); err != nil {
				r.fail(n.at, "%s", err)
				return
			}
		}
		r.config.ExtraPaths = append(r.config.ExtraPaths, n.text)
	}
}
