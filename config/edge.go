package config

import (
	"crypto/tls"
	"net/url"
	"slices"
	"strings"
)

// path reads the path of a file.
func (r *reader) path(dst *string) func(*node) {
	return func(n *node) {
		if n.kind != text || n.text == "" {
			r.mismatch(n, "the path of a file")
			return
		}
		*dst = n.beside()
	}
}

// tls reads how connections are encrypted, and tries certificate and key. Both count as read, so that a [Watcher] sees them change.
func (r *reader) tls(dst *TLS) func(*node) {
	return func(n *node) {
		before := len(r.problems)
		r.object(r.tlsConfig(dst))(n)
		if n.kind != mapping || len(r.problems) > before {
			return
		}
		cert, key := n.get("cert_file"), n.get("key_file")
		if cert == nil || key == nil {
			r.fail(n.at, "tls needs cert_file and key_file, both in PEM")
			return
		}
		if r.open == nil {
			return
		}
		certPEM, _, okCert := r.content(cert)
		keyPEM, _, okKey := r.content(key)
		if !okCert || !okKey {
			return
		}
		if _, err := tls.X509KeyPair(certPEM, keyPEM); err != nil {
			r.fail(n.at, "certificate and key cannot be used: %s", strings.TrimPrefix(err.Error(), "tls: "))
		}
	}
}

// cors reads which origins are let in.
func (r *reader) cors(dst **CORS) func(*node) {
	return func(n *node) {
		c := new(CORS)
		r.object(r.corsConfig(c))(n)
		if n.kind == mapping && n.get("allowed_origins") == nil {
			r.fail(n.at, `cors needs allowed_origins, like ["https://chat.example.com"]`)
		}
		*dst = c
	}
}

func (r *reader) origins(c *CORS) func(*node) {
	return func(n *node) {
		r.list(func(item *node) {
			origin := strings.ToLower(item.text)
			switch {
			case item.kind != text || item.text != "*" && !isOrigin(origin):
				r.mismatch(item, `an origin like https://chat.example.com, without a path, or "*"`)
			case slices.Contains(c.AllowedOrigins, origin):
				r.fail(item.at, "%s is in the list already; remove it", display(item.text))
			default:
				c.AllowedOrigins = append(c.AllowedOrigins, origin)
			}
		})(n)
		switch {
		case n.kind == sequence && len(n.nodes) == 0:
			r.fail(n.at, "allowed_origins is empty; list at least one, or remove cors")
		case len(c.AllowedOrigins) > 1 && slices.Contains(c.AllowedOrigins, "*"):
			r.fail(n.at, `"*" allows every origin; remove it or the others`)
		}
	}
}

// isOrigin tells what browsers send as Origin.
func isOrigin(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.Scheme != "" && u.Host != "" && s == u.Scheme+"://"+u.Host && !strings.ContainsFunc(s, unprintable)
}
