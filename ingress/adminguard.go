package ingress

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"

	"berth/config"
	"berth/internal/openai"
)

// privateSuffixes are suffixes of names outside public DNS, so no foreign page can have such a
// name.
var privateSuffixes = []string{".localhost", ".internal", ".svc", ".cluster.local"}

// guardAdmin protects the admin listener against web pages open in an operator's browser and, if an
// admin key is configured, against all requests without that key. GET /metrics always passes: the
// public listener serves the same page, and scrapers use any host name.
//
// A page can make a browser send cross-site requests, revealed by Origin and Sec-Fetch-Site, or let
// the page's own name resolve to the listener's address (DNS rebinding), revealed by Host. Without
// a key, Host must therefore be an IP address, the configured name of the listener, or a name
// impossible for a foreign page. With the right key any Host is accepted.
func (s *Server) guardAdmin(next http.Handler) http.Handler {
	var origins http.CrossOriginProtection
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
			next.ServeHTTP(w, r)
			return
		}
		err := s.checkAdminKey(r)
		if err == nil {
			err = checkOrigin(&origins, r)
		}
		if err != nil {
			if errors.Is(err, errAdminKey) {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			toAPIError(err).write(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// checkAdminKey checks the key if one is configured, else the Host. The key is removed from the
// request, so engines never see the key.
func (s *Server) checkAdminKey(r *http.Request) error {
	key := s.adminKey.Load()
	if key == nil {
		return s.checkAdminHost(r.Host)
	}
	hash := sha256.Sum256([]byte(presentedKey(r.Header)))
	if subtle.ConstantTimeCompare(hash[:], key[:]) != 1 {
		return errAdminKey
	}
	r.Header.Del("Authorization")
	r.Header.Del("X-Api-Key")
	return nil
}

// checkAdminHost returns errAdminHost if a foreign page could have this host name.
func (s *Server) checkAdminHost(hostport string) error {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	configured, _, _ := net.SplitHostPort(s.registry.table.Load().config.Admin.Address)
	_, notIP := netip.ParseAddr(host)
	switch {
	case host == "": // HTTP/1.0; browsers always send Host
	case notIP == nil, !strings.Contains(host, "."), host == strings.ToLower(configured):
	case slices.ContainsFunc(privateSuffixes, func(suffix string) bool { return strings.HasSuffix(host, suffix) }):
	default:
		return errAdminHost
	}
	return nil
}

// checkOrigin returns errCrossSite for a browser's request on behalf of a page of another site. On
// management paths it rejects every method, since some engines are managed by GET; elsewhere safe
// methods pass.
func checkOrigin(origins *http.CrossOriginProtection, r *http.Request) error {
	checked, manages := *r, openai.IsManagementPath(r.URL.Path)
	if manages {
		checked.Method = http.MethodPost
	}
	// Over plain HTTP a browser requests images of another site's page without either header.
	unmarked := r.Header.Get("Sec-Fetch-Site") == "" && r.Header.Get("Origin") == ""
	if origins.Check(&checked) != nil || manages && unmarked && strings.HasPrefix(r.UserAgent(), "Mozilla/") {
		return errCrossSite
	}
	return nil
}

// loadAdminKey returns the hash of the admin key; nil if none is configured.
func loadAdminKey(a config.Admin) (*[sha256.Size]byte, error) {
	if a.KeyEnv == "" {
		return nil, nil
	}
	key := os.Getenv(a.KeyEnv)
	if key == "" {
		return nil, fmt.Errorf("the environment variable %s, which should hold the key of the admin listener, is not set", a.KeyEnv)
	}
	hash := sha256.Sum256([]byte(key))
	return &hash, nil
}
