package ingress

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// adminRaw sends raw bytes to the admin listener: a request with these header lines.
func (f *front) adminRaw(line string, header ...string) reply {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.AdminAddress())
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	text := line + " HTTP/1.1\r\n" + strings.Join(header, "\r\n") + "\r\nContent-Length: 0\r\n\r\n"
	if _, err := io.WriteString(conn, text); err != nil {
		f.t.Fatal(err)
	}
	r := readReply(f.t, bufio.NewReader(conn), strings.Fields(line)[0])
	r.Header.Set("X-Request-Id", "none here")
	return r
}

func TestAdminRejectsCrossSiteRequests(t *testing.T) {
	url, requests := recording(t)
	f := serve(t, modelOn("m", url))
	for _, row := range []struct {
		line, header, code string
	}{
		{"POST /sleep", "Host: evil.example\nOrigin: https://evil.example\nSec-Fetch-Site: cross-site", "unknown_host"},
		{"POST /sleep", "Host: 127.0.0.1:8001\nOrigin: https://evil.example\nSec-Fetch-Site: cross-site", "cross_site_request"},
		{"POST /sleep", "Host: 127.0.0.1:8001\nOrigin: https://evil.example", "cross_site_request"},
		{"POST /sleep", "Host: 127.0.0.1:8001\nSec-Fetch-Site: same-site", "cross_site_request"},
		{"POST /sleep", "Host: 127.0.0.1:8001\nOrigin: null", "cross_site_request"},
		{"GET /flush_cache", "Host: localhost:8001\nSec-Fetch-Site: cross-site", "cross_site_request"},
		{"GET /flush_cache", "Host: 10.0.0.7:8001\nUser-Agent: Mozilla/5.0", "cross_site_request"}, // an image, over plain HTTP
		{"POST /internal/replicas/a/drain", "Host: 127.0.0.1:8001\nSec-Fetch-Site: cross-site", "cross_site_request"},
		{"POST /sleep", "Host: evil.example", "unknown_host"},
		{"POST /sleep", "Host: 127.0.0.1.evil.example", "unknown_host"},
		{"POST /sleep", "Host: evil.example.:8001", "unknown_host"},
		{"GET /internal/decisions", "Host: evil.example:8001", "unknown_host"},
		{"GET /debug/pprof/cmdline", "Host: evil.example:8001", "unknown_host"},
	} {
		wantError(t, f.adminRaw(row.line, strings.Split(row.header, "\n")...), 403, row.code, "")
	}
	if len(requests) > 0 {
		t.Errorf("the replica was sent %s", (<-requests).uri)
	}
	for _, row := range []struct{ line, header string }{
		{"GET /metrics", "Host: evil.example\nSec-Fetch-Site: cross-site"}, // scrapers use any host name
		{"HEAD /metrics", "Host: prometheus.example.com"},
		{"GET /internal/slots", "Host: 10.0.0.7:8001"},
		{"GET /internal/slots", "Host: [::1]:8001"},
		{"GET /internal/slots", "Host: [::1]"},
		{"GET /internal/slots", "Host: LOCALHOST"},
		{"GET /internal/slots", "Host: berth-admin:8001"},
		{"GET /internal/slots", "Host: berth-admin.serving.svc.cluster.local:8001"},
		{"GET /internal/slots", "Host: 127.0.0.1\nSec-Fetch-Site: none"},
		{"GET /debug/pprof/cmdline", "Host: 127.0.0.1\nSec-Fetch-Site: cross-site"}, // a link; the other page cannot read it
		{"POST /sleep", "Host: 127.0.0.1:8001"},
		{"POST /sleep", "Host: 127.0.0.1:8001\nOrigin: http://127.0.0.1:8001\nSec-Fetch-Site: same-origin"},
	} {
		if r := f.adminRaw(row.line, strings.Split(row.header, "\n")...); r.StatusCode != 200 {
			t.Errorf("%s with %q got %d %s", row.line, row.header, r.StatusCode, r.body)
		}
	}
}

func TestAdminRejectsUnknownHost(t *testing.T) {
	c := configured(modelOn("m", refusing(1)))
	f := serveConfig(t, c)
	named := *c
	named.Admin.Address = "Admin.Example.com:8001" // only the guard uses it before a restart
	if err := f.Apply(&named); err != nil {
		t.Fatal(err)
	}
	if r := f.adminRaw("GET /internal/slots", "Host: admin.example.com:8001"); r.StatusCode != 200 {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
	wantError(t, f.adminRaw("GET /internal/slots", "Host: other.example.com"), 403, "unknown_host", "")
}

func TestAdminRequiresKey(t *testing.T) {
	url, requests := recording(t)
	c := configured(modelOn("m", url))
	c.Admin.KeyEnv = "BERTH_TEST_ADMIN_KEY"
	t.Setenv(c.Admin.KeyEnv, "")
	f := serve(t, modelOn("m", url))
	if err := f.Apply(c); err == nil || !strings.Contains(err.Error(), c.Admin.KeyEnv) {
		t.Errorf("without the variable: %v", err)
	}
	t.Setenv(c.Admin.KeyEnv, "sk-admin")
	if err := f.Apply(c); err != nil {
		t.Fatal(err)
	}
	for _, header := range []string{"X-None: 1", "Authorization: Bearer wrong", "Authorization: sk-admin", "X-Api-Key: sk-admi"} {
		for _, line := range []string{"POST /sleep", "GET /internal/slots", "GET /debug/pprof/cmdline"} {
			r := f.adminRaw(line, "Host: 127.0.0.1", header)
			if wantError(t, r, 401, "invalid_api_key", ""); r.Header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("its header is %v", r.Header)
			}
		}
	}
	if r := f.adminRaw("GET /metrics", "Host: 127.0.0.1"); r.StatusCode != 200 {
		t.Errorf("metrics: %d %s", r.StatusCode, r.body)
	}
	wantError(t, f.adminRaw("POST /sleep", "Host: 127.0.0.1", "Authorization: Bearer sk-admin", "Sec-Fetch-Site: cross-site"), 403, "cross_site_request", "")
	if len(requests) > 0 {
		t.Errorf("the replica was sent %s", (<-requests).uri)
	}
	for _, header := range []string{"Authorization: Bearer sk-admin", "X-Api-Key: sk-admin"} {
		if r := f.adminRaw("POST /sleep", "Host: berth.example.com", header); r.StatusCode != 200 {
			t.Errorf("%s got %d %s", header, r.StatusCode, r.body)
		}
		if s := receive(t, requests); s.header.Get("Authorization")+s.header.Get("X-Api-Key") != "" {
			t.Errorf("the replica received the key: %v", s.header)
		}
	}
}
