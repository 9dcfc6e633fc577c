package config

import (
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
)

var defaultPorts = map[string]string{"http": "80", "https": "443"}

// replicaURL reads and normalizes the URL of a replica.
func (r *reader) replicaURL(dst *string) func(*node) {
	return func(n *node) {
		if n.kind != text {
			r.wrongValue(n, "a URL like http://10.0.0.11:8000")
			return
		}
		normalized, err := normalizeURL(n.text)
		if err != nil {
			r.problemf(n.at, "%s %s", n.name, err)
			return
		}
		*dst = normalized
	}
}

// normalizeURL returns the canonical form of a URL: scheme and host in lower case, without default
// port, trailing slash and trailing /v1, which is part of the base URL of OpenAI clients. Errors do
// not repeat the URL, which may contain a password.
func normalizeURL(raw string) (string, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil || strings.ContainsFunc(raw, unprintable):
		return "", errors.New("is not a URL; use one like http://10.0.0.11:8000")
	case u.Scheme != "http" && u.Scheme != "https":
		return "", errors.New("must start with http:// or https://")
	case u.Hostname() == "":
		return "", errors.New("has no host; use one like http://10.0.0.11:8000")
	case u.User != nil:
		return "", errors.New("must not contain a user or password; use api_key_env for a key")
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(raw, "#"):
		return "", errors.New("must not contain ? or #")
	case strings.HasSuffix(u.Host, ":") || u.Port() != "" && !isPort(u.Port(), 1):
		return "", errors.New("must have a port from 1 to 65535 or none")
	}
	host := strings.TrimSuffix(strings.ToLower(u.Host), ":"+defaultPorts[u.Scheme])
	path := strings.TrimRight(u.EscapedPath(), "/")
	for strings.HasSuffix(path, "/v1") {
		path = strings.TrimRight(strings.TrimSuffix(path, "/v1"), "/")
	}
	return (&url.URL{Scheme: u.Scheme, Host: host}).String() + path, nil
}

// listenAddress reads an address to listen on.
func (r *reader) listenAddress(dst *string) func(*node) {
	return func(n *node) {
		if n.kind != text || !isAddress(n.text) {
			r.wrongValue(n, "host:port, like 127.0.0.1:8000")
			return
		}
		*dst = n.text
	}
}

// optionalListenAddress reads an address to listen on, or an empty string.
func (r *reader) optionalListenAddress(dst *string) func(*node) {
	return func(n *node) {
		if n.kind != text || n.text != "" && !isAddress(n.text) {
			r.wrongValue(n, `host:port, like 127.0.0.1:8001, or "" for no listener`)
			return
		}
		*dst = n.text
	}
}

// isAddress reports whether s is host:port.
func isAddress(s string) bool {
	host, port, err := net.SplitHostPort(s)
	return err == nil && isPort(port, 0) && !strings.ContainsFunc(host, func(c rune) bool { return unprintable(c) || c == ' ' })
}

// isPort reports whether s is a port number of at least least. Listeners may use port 0, any free
// port.
func isPort(s string, least uint64) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n >= least
}

// addressesConflict reports whether a process cannot listen on both addresses.
func addressesConflict(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" {
		return false
	}
	return hostA == hostB || isWildcard(hostA) || isWildcard(hostB)
}

func isWildcard(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}
