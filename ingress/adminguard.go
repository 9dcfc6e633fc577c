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

var (
	errAdminKey  = errors.New("The admin listener needs its own key; send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'.")
	errCrossSite = errors.New("The admin listener takes no requests that a browser sends for a page of another site.")
	errAdminHost = errors.New("The admin listener is not called by this name; use its IP address, or set admin.api_key_env and send that key.")
)

// privateSuffixes end names that nobody can register, so that no foreign page can be served under
// them.
var privateSuffixes = []string{".localhost", ".internal", ".svc", ".cluster.local"}

// guard keeps web pages that an operator happens to look at from using the admin listener, and,
// where there is an admin key, everybody else who does not have it. GET /metrics passes always: it
// is public on the other listener as well, and scrapers ask for it by any name.
//
// A page can have its browser send requests across sites, which Origin and Sec-Fetch-Site give away,
// or make its own name resolve to the listener's address (DNS rebinding), which Host gives away. So
// Host must be an IP address, the name that the listener is configured with, or a name that no
// foreign page can have. A right key makes up for any Host.
func (s *Server) guard(next http.Handler) http.Handler {
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
			answerFor(err).write(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// checkAdminKey checks the key if one is configured, else the Host. It takes the key out of the
// request: it is not the engines' business.
func (s *Server) checkAdminKey(r *http.Request) error {
	key := s.adminKey.Load()
	if key == nil {
		return s.checkAdminHost(r.Host)
	}
	given := bearer(r.Header.Get("Authorization"))
	if given == "" {
		given = r.Header.Get("X-Api-Key")
	}
	hash := sha256.Sum256([]byte(given))
	if subtle.ConstantTimeCompare(hash[:], key[:]) != 1 {
		return errAdminKey
	}
	r.Header.Del("Authorization")
	r.Header.Del("X-Api-Key")
	return nil
}

func (s *Server) checkAdminHost(hostport string) error {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	configured, _, _ := net.SplitHostPort(s.registry.table.Load().config.Admin.Address)
	_, notIP := netip.ParseAddr(host)
	switch {
	case host == "": // HTTP/1.0, which no browser speaks
	case notIP == nil, !strings.Contains(host, "."), host == strings.ToLower(configured):
	case slices.ContainsFunc(privateSuffixes, func(suffix string) bool { return strings.HasSuffix(host, suffix) }):
	default:
		return errAdminHost
	}
	return nil
}

// checkOrigin refuses what a browser sends for a page of another site: with any method where the
// call manages engines, some of which are managed by GET, else with those that change something.
func checkOrigin(origins *http.CrossOriginProtection, r *http.Request) error {
	as, manages := *r, openai.IsManagementPath(r.URL.Path)
	if manages {
		as.Method = http.MethodPost
	}
	// An image of another site's page is asked for without either header where the listener is plain HTTP.
	unmarked := r.Header.Get("Sec-Fetch-Site") == "" && r.Header.Get("Origin") == ""
	if origins.Check(&as) != nil || manages && unmarked && strings.HasPrefix(r.UserAgent(), "Mozilla/") {
		return errCrossSite
	}
	return nil
}

// adminKeyOf returns the hash of the admin key; nil if none is configured.
func adminKeyOf(a config.Admin) (*[sha256.Size]byte, error) {
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
