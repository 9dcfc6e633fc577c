package config

import (
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
)

var defaultPorts = map[string]string{"http": "80", "https": "443"}

// endpoint reads the URL of a replica and normalises it.
func (r *reader) endpoint(dst *string) func(*node) {
	return func(n *node) {
		if n.kind != text {
			r.mismatch(n, "a URL like http://10.0.0.11:8000")
			return
		}
		normalised, err := normalise(n.text)
		if err != nil {
			r.fail(n.at, "%s %s", n.name, err)
			return
		}
		*dst = normalised
	}
}

// normalise brings URLs of the same place to the same form: lower-case scheme and host, no default port, no
// trailing slash, and no trailing /v1, which OpenAI clients put into their base URL. Its errors do not repeat
// the URL, which may hold a password.
func normalise(raw string) (string, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil || strings.ContainsFunc(raw, unprintable):
		return "", errors.New("is not a URL; write one like http://10.0.0.11:8000")
	case u.Scheme != "http" && u.Scheme != "https":
		return "", errors.New("must start with http:// or https://")
	case u.Hostname() == "":
		return "", errors.New("has no host; write one like http://10.0.0.11:8000")
	case u.User != nil:
		return "", errors.New("must hold no user or password; use api_key_env for a key")
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(raw, "#"):
		return "", errors.New("must end after its path, without ? or #")
	case strings.HasSuffix(u.Host, ":") || u.Port() != "" && !isPort(u.Port(), 1):
		return "", errors.New("must have a port from 1 to 65535, or none")
	}
	host := strings.TrimSuffix(strings.ToLower(u.Host), ":"+defaultPorts[u.Scheme])
	path := strings.TrimRight(u.EscapedPath(), "/")
	for strings.HasSuffix(path, "/v1") {
		path = strings.TrimRight(strings.TrimSuffix(path, "/v1"), "/")
	}
	return (&url.URL{Scheme: u.Scheme, Host: host}).String() + path, nil
}

// listen reads an address to listen on.
func (r *reader) listen(dst *string) func(*node) {
	return func(n *node) {
		if n.kind != text || !isAddress(n.text) {
			r.mismatch(n, "host:port, like 127.0.0.1:8000")
			return
		}
		*dst = n.text
	}
}

// listenOrNot reads an address to listen on, or an empty text.
func (r *reader) listenOrNot(dst *string) func(*node) {
	return func(n *node) {
		if n.kind != text || n.text != "" && !isAddress(n.text) {
			r.mismatch(n, `host:port, like 127.0.0.1:8001, or "" for no such listener`)
			return
		}
		*dst = n.text
	}
}

func isAddress(s string) bool {
	host, port, err := net.SplitHostPort(s)
	return err == nil && isPort(port, 0) && !strings.ContainsFunc(host, func(c rune) bool { return unprintable(c) || c == ' ' })
}

// isPort tells whether s is a port number; listeners may ask for port 0, which is any free one.
func isPort(s string, least uint64) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n >= least
}

// collide tells whether a process cannot listen on both addresses.
func collide(a, b string) bool {
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
