package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// writeCertificate writes a self-signed certificate for the loopback address and its key to
// cert.pem and key.pem.
func writeCertificate(t *testing.T, dir string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		Subject:      pkix.Name{CommonName: "berth"},
		SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	replaceFile(t, filepath.Join(dir, "key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
	replaceFile(t, filepath.Join(dir, "cert.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})))
}

// serveWithTLSAndKeys starts berth with TLS and API keys, whose files are in dir.
func serveWithTLSAndKeys(t *testing.T, dir string) *berth {
	writeCertificate(t, dir, 1)
	replaceFile(t, filepath.Join(dir, "keys.yaml"), "keys: [{name: all, key: sk-all}, {name: some, key: sk-some, models: [demo]}]")
	return serve(t, fmt.Sprintf(`
http:
  address: "127.0.0.1:0"
  tls: {cert_file: %[1]s/cert.pem, key_file: %[1]s/key.pem}
admin: {address: "127.0.0.1:0"}
auth: {keys_file: %[1]s/keys.yaml}
llm_configs:
  - {model_loading_config: {model_id: demo}, simulated: {}}
  - {model_loading_config: {model_id: other}, simulated: {}}
`, dir))
}

func TestTLSServesCurl(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := serveWithTLSAndKeys(t, dir)
	for flag, version := range map[string]string{"--http1.1": "1.1", "--http2": "2"} {
		got := curl(t, fmt.Sprintf(`curl -sSN %s --cacert %s/cert.pem -w '%%{http_version}' %s/v1/chat/completions -H 'Content-Type: application/json' `+
			`-H 'Authorization: Bearer sk-some' -d '{"model":"demo","stream":true,"max_tokens":3,"messages":[{"role":"user","content":"Hi"}]}'`, flag, dir, b.url))
		if !strings.HasSuffix(got, "data: [DONE]\n\n"+version) {
			t.Errorf("with %s: %q", flag, got)
		}
	}
}

func TestAuthRefusesAnUnknownKeyInWordsTheGoSDKUnderstands(t *testing.T) {
	t.Parallel()
	b := serveWithTLSAndKeys(t, t.TempDir())
	trusting := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}}
	t.Cleanup(trusting.CloseIdleConnections)
	for _, test := range []struct {
		key, model, code string
		status           int
	}{
		{"sk-all", "other", "", 200},
		{"sk-some", "demo", "", 200},
		{"sk-some", "other", "model_not_allowed", 403},
		{"sk-none", "demo", "invalid_api_key", 401},
	} {
		client := openai.NewClient(option.WithBaseURL(b.url+"/v1"), option.WithAPIKey(test.key), option.WithMaxRetries(0), option.WithHTTPClient(trusting))
		_, err := client.Chat.Completions.New(t.Context(), officialRequest(test.model, 2))
		apiErr, refused := errors.AsType[*openai.Error](err)
		if refused != (test.status != 200) || !refused && err != nil || refused && (apiErr.StatusCode != test.status || apiErr.Code != test.code) {
			t.Errorf("%s for %s: %v", test.key, test.model, err)
		}
	}
}

func TestReloadRenewsCertificatesAndKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := serveWithTLSAndKeys(t, dir)
	serial := func() string {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(b.url, "https://"), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	models := func(key string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Api-Key", key)
		resp, err := (&http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	if serial() != "1" || models("sk-all") != 200 {
		t.Fatalf("serial %s, status %d with the first key; want 1 and 200", serial(), models("sk-all"))
	}
	writeCertificate(t, dir, 2)
	b.signal(t, syscall.SIGHUP)
	eventually(t, "the new certificate is served", func() bool { return serial() == "2" })
	replaceFile(t, filepath.Join(dir, "keys.yaml"), "keys: [{name: all, key: sk-new}]") // without a signal
	eventually(t, "the old key is refused", func() bool { return models("sk-all") == 401 })
	if status := models("sk-new"); status != 200 {
		t.Errorf("the new key gets status %d", status)
	}
}
