package config

import (
	"crypto/tls"
	"net/url"
	"slices"
	"strings"
)

// filePath reads the path of a file, relative to the configuration file.
func (r *reader) filePath(dst *string) func(*node) {
	return func(n *node) {
		if n.kind != text || n.text == "" {
			r.wrongValue(n, "the path of a file")
			return
		}
		*dst = n.resolvePath()
	}
}

// tls reads the TLS settings and loads certificate and key. Both are read by the opener, so a
// [Watcher] notices their changes.
func (r *reader) tls(dst *TLS) func(*node) {
	return func(n *node) {
		before := len(r.problems)
		r.object(r.tlsConfig(dst))(n)
		if n.kind != mapping || len(r.problems) > before {
			return
		}
		cert, key := n.get("cert_file"), n.get("key_file")
		if cert == nil || key == nil {
			r.problemf(n.at, "tls needs both cert_file and key_file, in PEM")
			return
		}
		if r.open == nil {
			return
		}
		certPEM, _, okCert := r.readFile(cert)
		keyPEM, _, okKey := r.readFile(key)
		if !okCert || !okKey {
			return
		}
		if _, err := tls.X509KeyPair(certPEM, keyPEM); err != nil {
			r.problemf(n.at, "cannot use certificate and key: %s", strings.TrimPrefix(err.Error(), "tls: "))
		}
	}
}

// cors reads the CORS settings.
func (r *reader) cors(dst **CORS) func(*node) {
	return func(n *node) {
		c := new(CORS)
		r.object(r.corsConfig(c))(n)
		if n.kind == mapping && n.get("allowed_origins") == nil {
			r.problemf(n.at, `cors needs allowed_origins, like ["https://chat.example.com"]`)
		}
		*dst = c
	}
}

// origins reads the list of allowed origins.
func (r *reader) origins(c *CORS) func(*node) {
	return func(n *node) {
		r.list(func(item *node) {
			origin := strings.ToLower(item.text)
			switch {
			case item.kind != text || item.text != "*" && !isOrigin(origin):
				r.wrongValue(item, `an origin like https://chat.example.com, without a path, or "*"`)
			case slices.Contains(c.AllowedOrigins, origin):
				r.problemf(item.at, "duplicate %s; remove it", display(item.text))
			default:
				c.AllowedOrigins = append(c.AllowedOrigins, origin)
			}
		})(n)
		switch {
		case n.kind == sequence && len(n.nodes) == 0:
			r.problemf(n.at, "allowed_origins is empty; list at least one origin, or remove cors")
		case len(c.AllowedOrigins) > 1 && slices.Contains(c.AllowedOrigins, "*"):
			r.problemf(n.at, `"*" allows all origins; remove it or the others`)
		}
	}
}

// isOrigin reports whether s has the form of an Origin field.
func isOrigin(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Scheme != "" && u.Host != "" && s == u.Scheme+"://"+u.Host && !strings.ContainsFunc(s, unprintable)
}
