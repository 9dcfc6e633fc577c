package ingress

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth/config"
)

// pair writes a self-signed certificate and its key to files and returns the certificate.
func pair(t *testing.T, files config.TLS, serial int64, end time.Time) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     end,
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:         true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{files.CertFile: {Type: "CERTIFICATE", Bytes: der}, files.KeyFile: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// encrypted returns a configuration with TLS and its certificate.
func encrypted(t *testing.T, models ...config.Model) (*config.Config, *x509.Certificate) {
	c := configured(models...)
	dir := t.TempDir()
	c.HTTP.TLS = config.TLS{CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}
	return c, pair(t, c.HTTP.TLS, 1, time.Now().Add(time.Hour))
}

// overTLS returns a client that trusts the certificate and the number of its connections. It offers
// HTTP/2 on request.
func overTLS(t *testing.T, cert *x509.Certificate, h2 bool) (*http.Client, *atomic.Int32) {
	trusted, dials := x509.NewCertPool(), new(atomic.Int32)
	trusted.AddCert(cert)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!h2)
	protocols.SetHTTP2(h2)
	transport := &http.Transport{
		Protocols: protocols, DisableCompression: true,
		TLSClientConfig: &tls.Config{RootCAs: trusted},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}, dials
}

// bothOverTLS runs a test with clients of HTTP/1.1 and of HTTP/2.
func bothOverTLS(t *testing.T, cert *x509.Certificate, test func(t *testing.T, client *http.Client)) {
	for proto, h2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2.0": true} {
		t.Run(proto, func(t *testing.T) {
			client, _ := overTLS(t, cert, h2)
			test(t, client)
		})
	}
}

func TestTLSServesClients(t *testing.T) {
	c, cert := encrypted(t, modelOn("m", upstream(t, ok)))
	f := serveConfig(t, c)
	bothOverTLS(t, cert, func(t *testing.T, client *http.Client) {
		r := f.do(t.Context(), client, "POST", "/v1/chat/completions", strings.NewReader(chat("m")))
		if r.body != "ok" || r.Proto != t.Name()[strings.LastIndex(t.Name(), "HTTP/"):] {
			t.Errorf("got %d %s by %s, %v", r.StatusCode, r.body, r.Proto, r.err)
		}
	})
	conn, err := tls.Dial("tcp", f.Address(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h9", "h2"}})
	if err != nil {
		t.Fatal(err)
	}
	if p := conn.ConnectionState().NegotiatedProtocol; p != "h2" {
		t.Errorf("ALPN of h9 and h2 chose %q", p)
	}
	conn.Close()
	if conn, err := tls.Dial("tcp", f.Address(), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}); err == nil {
		conn.Close()
		t.Error("TLS 1.1 was accepted")
	}
	if r := f.do(t.Context(), clientOf(t, false), "GET", "/livez", nil); r.err == nil {
		t.Errorf("a client that does not trust the certificate got %s", r.body)
	}
	if resp, err := clientOf(t, false).Get("http://" + f.Address() + "/livez"); err == nil {
		if resp.Body.Close(); resp.StatusCode != 400 {
			t.Errorf("without TLS the status is %d", resp.StatusCode)
		}
	}
	if log := f.log.take(); strings.Contains(log, "level=WARN") {
		t.Errorf("logged:\n%s", log)
	}
}

func TestTLSNewCertificateAppliesToNewConnections(t *testing.T) {
	g := gated(t)
	c, cert := encrypted(t, modelOn("m", g.url))
	f := serveConfig(t, c)
	before, _ := overTLS(t, cert, true)
	stream := f.background(func() reply {
		return f.do(t.Context(), before, "POST", "/v1/chat/completions", strings.NewReader(chat("m")))
	})
	receive(t, g.arrived)
	renewed := pair(t, c.HTTP.TLS, 2, time.Now().Add(time.Hour))
	if err := f.Apply(c); err != nil {
		t.Fatal(err)
	}
	after, _ := overTLS(t, renewed, false)
	if r := f.do(t.Context(), after, "GET", "/livez", nil); r.StatusCode != 200 {
		t.Errorf("with the new certificate: %v", r.err)
	}
	if err := os.WriteFile(c.HTTP.TLS.KeyFile, []byte("half a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Apply(c); err == nil || !strings.Contains(err.Error(), c.HTTP.TLS.KeyFile) {
		t.Errorf("with an invalid key: %v", err)
	}
	again, _ := overTLS(t, renewed, true)
	if r := f.do(t.Context(), again, "GET", "/livez", nil); r.StatusCode != 200 {
		t.Errorf("after a bad reload: %v", r.err)
	}
	g.open <- struct{}{}
	if r := receive(t, stream); r.body != "ok" {
		t.Errorf("the ongoing request got %d %s %v", r.StatusCode, r.body, r.err)
	}
	pair(t, c.HTTP.TLS, 3, time.Now().Add(-time.Minute))
	if err := f.Apply(c); err != nil {
		t.Fatal(err)
	}
	log := f.log.take()
	if n := strings.Count(log, "new connections get another certificate"); n != 2 {
		t.Errorf("%d lines about another certificate; want 2:\n%s", n, log)
	}
	if !strings.Contains(log, "expired") {
		t.Errorf("no warning of an expired certificate:\n%s", log)
	}
}

func TestTLSCancelReachesReplica(t *testing.T) {
	g := gated(t)
	c, cert := encrypted(t, modelOn("m", g.url))
	f := serveConfig(t, c)
	bothOverTLS(t, cert, func(t *testing.T, client *http.Client) {
		ctx, leave := context.WithCancel(t.Context())
		gone := f.background(func() reply {
			return f.do(ctx, client, "POST", "/v1/chat/completions", strings.NewReader(chat("m")))
		})
		receive(t, g.arrived)
		leave()
		receive(t, g.left)
		receive(t, gone)
		f.idle()
	})
}

func TestTLSBrokenStreamDoesNotLookComplete(t *testing.T) {
	const event = "data: {}\n\n"
	c, cert := encrypted(t, modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, event)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})))
	f := serveConfig(t, c)
	bothOverTLS(t, cert, func(t *testing.T, client *http.Client) {
		r := f.do(t.Context(), client, "POST", "/v1/chat/completions", strings.NewReader(chat("m")))
		if rest, begun := strings.CutPrefix(r.body, event); !begun || !strings.HasPrefix(rest, `data: {"error":`) || r.err == nil {
			t.Errorf("got %q and %v", r.body, r.err)
		}
	})
}

// A thousand streams of one connection wait for their responses at the same time.
func TestTLSConnectionCarriesThousandStreams(t *testing.T) {
	const streams = 1000
	var arrived atomic.Int32
	all := make(chan struct{})
	m := modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "warm-up") {
			return
		}
		if arrived.Add(1) == streams {
			close(all)
		}
		select {
		case <-all:
			w.Write(body)
		case <-r.Context().Done():
		}
	}))
	m.Replicas[0].MaxOngoingRequests = streams
	m.ConnectTimeout = time.Minute
	c, cert := encrypted(t, m)
	f := serveConfig(t, c)
	client, dials := overTLS(t, cert, true)
	f.do(t.Context(), client, "POST", "/v1/completions", strings.NewReader(`{"model":"m","prompt":"warm-up"}`)) // afterwards the client knows the limit
	var running sync.WaitGroup
	for i := range streams {
		running.Go(func() {
			body := `{"model":"m","prompt":"` + strconv.Itoa(i) + `"}`
			if r := f.do(t.Context(), client, "POST", "/v1/completions", strings.NewReader(body)); r.body != body {
				t.Errorf("%s got %d %.100s %v", body, r.StatusCode, r.body, r.err)
			}
		})
	}
	running.Wait()
	if dials.Load() != 1 {
		t.Errorf("it took %d connections", dials.Load())
	}
}
