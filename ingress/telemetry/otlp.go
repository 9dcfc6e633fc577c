package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// otlpClient uploads spans to a collector by OTLP over HTTP, configured by the standard variables.
// OpenTelemetry's own HTTP client depends on gRPC, which would make the binary half as large again.
// otlpClient implements otlptrace.Client.
type otlpClient struct {
	url     string
	header  http.Header
	gzip    bool
	timeout time.Duration // of one export, with all retries
	backoff time.Duration // before the first retry; doubled for each further one
	client  http.Client
}

// otlpEnv returns a variable of the OTLP exporter: the one for traces if set, else the one for all
// signals.
func otlpEnv(name string) string {
	if value := os.Getenv("OTEL_EXPORTER_OTLP_TRACES_" + name); value != "" {
		return value
	}
	return os.Getenv("OTEL_EXPORTER_OTLP_" + name)
}

// otlpClientFromEnv returns a client configured by the environment. It does not connect; the error
// is that of an invalid setting.
func otlpClientFromEnv() (*otlpClient, error) {
	c := &otlpClient{url: os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), header: http.Header{}, timeout: 10 * time.Second, backoff: time.Second}
	if c.url == "" {
		base := os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT")
		if base == "" {
			base = "http://localhost:4318"
		}
		c.url = strings.TrimSuffix(base, "/") + "/v1/traces"
	}
	if u, err := url.Parse(c.url); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("the OTLP endpoint %q is not an http:// or https:// URL", c.url)
	}
	if protocol := otlpEnv("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		return nil, fmt.Errorf("the OTLP protocol is %q; traces are exported by http/protobuf only", protocol)
	}
	for member := range strings.SplitSeq(otlpEnv("HEADERS"), ",") {
		if name, value, ok := strings.Cut(member, "="); ok {
			value, err := url.PathUnescape(strings.TrimSpace(value))
			if err != nil {
				return nil, fmt.Errorf("the OTLP header %s: %w", name, err)
			}
			c.header.Set(strings.TrimSpace(name), value)
		}
	}
	c.header.Set("Content-Type", "application/x-protobuf")
	if c.gzip = otlpEnv("COMPRESSION") == "gzip"; c.gzip {
		c.header.Set("Content-Encoding", "gzip")
	}
	if text := otlpEnv("TIMEOUT"); text != "" {
		ms, err := strconv.Atoi(text)
		if err != nil || ms <= 0 {
			return nil, fmt.Errorf("the OTLP timeout %q is not a number of milliseconds", text)
		}
		c.timeout = time.Duration(ms) * time.Millisecond
	}
	return c, c.configureTLS()
}

// configureTLS loads the certificates named by the environment.
func (c *otlpClient) configureTLS() error {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = new(tls.Config)
	if path := otlpEnv("CERTIFICATE"); path != "" {
		pem, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("the OTLP certificate: %w", err)
		}
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("the OTLP certificate: %s holds none", path)
		}
	}
	if path := otlpEnv("CLIENT_CERTIFICATE"); path != "" {
		pair, err := tls.LoadX509KeyPair(path, otlpEnv("CLIENT_KEY"))
		if err != nil {
			return fmt.Errorf("the OTLP client certificate: %w", err)
		}
		t.TLSClientConfig.Certificates = []tls.Certificate{pair}
	}
	c.client.Transport = t
	return nil
}

// Start does nothing: connections are made on demand.
func (c *otlpClient) Start(context.Context) error { return nil }

// Stop closes idle connections.
func (c *otlpClient) Stop(context.Context) error {
	c.client.CloseIdleConnections()
	return nil
}

// UploadTraces sends spans. Overload responses of the collector are retried with exponential
// backoff, until the timeout.
func (c *otlpClient) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans}) // encoded like an ExportTraceServiceRequest
	if err != nil {
		return err
	}
	if c.gzip {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		w.Write(body) // into memory: no error
		w.Close()
		body = packed.Bytes()
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	for backoff := c.backoff; ; backoff *= 2 {
		retryAfter, err := c.postSpans(ctx, body)
		if retryAfter == 0 {
			return err
		}
		select {
		case <-time.After(max(backoff, retryAfter)):
		case <-ctx.Done():
			return err
		}
	}
}

// postSpans makes one attempt. retryAfter is above zero if a retry may succeed, and at least the
// delay requested by the collector.
func (c *otlpClient) postSpans(ctx context.Context, body []byte) (retryAfter time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header = c.header.Clone()
	resp, err := c.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // for the connection to be reused
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		return max(time.Duration(seconds)*time.Second, 1), fmt.Errorf("the collector responded %s", resp.Status)
	}
	if resp.StatusCode/100 != 2 {
		return 0, fmt.Errorf("the collector responded %s", resp.Status)
	}
	return 0, nil
}
