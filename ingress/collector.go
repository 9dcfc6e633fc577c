package ingress

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

// collector is where spans go: an endpoint that speaks OTLP over HTTP, as the standard variables describe it. The client
// that OpenTelemetry offers for it brings gRPC along, half as much again as all of berth.
type collector struct {
	url     string
	header  http.Header
	gzip    bool
	timeout time.Duration // of one export with all its tries
	pause   time.Duration // before the second try; then twice that, and so on
	client  http.Client
}

// exporting is a variable of the OTLP exporter: the one for traces alone, or else that for all signals.
func exporting(name string) string {
	if value := os.Getenv("OTEL_EXPORTER_OTLP_TRACES_" + name); value != "" {
		return value
	}
	return os.Getenv("OTEL_EXPORTER_OTLP_" + name)
}

// collectorByEnvironment finds the collector and checks what can be checked without asking it.
func collectorByEnvironment() (*collector, error) {
	c := &collector{url: os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), header: http.Header{}, timeout: 10 * time.Second, pause: time.Second}
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
	if protocol := exporting("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		return nil, fmt.Errorf("the OTLP protocol is %q; traces are exported by http/protobuf only", protocol)
	}
	for member := range strings.SplitSeq(exporting("HEADERS"), ",") {
		if name, value, ok := strings.Cut(member, "="); ok {
			value, err := url.PathUnescape(strings.TrimSpace(value))
			if err != nil {
				return nil, fmt.Errorf("the OTLP header %s: %w", name, err)
			}
			c.header.Set(strings.TrimSpace(name), value)
		}
	}
	c.header.Set("Content-Type", "application/x-protobuf")
	if c.gzip = exporting("COMPRESSION") == "gzip"; c.gzip {
		c.header.Set("Content-Encoding", "gzip")
	}
	if text := exporting("TIMEOUT"); text != "" {
		ms, err := strconv.Atoi(text)
		if err != nil || ms <= 0 {
			return nil, fmt.Errorf("the OTLP timeout %q is not a number of milliseconds", text)
		}
		c.timeout = time.Duration(ms) * time.Millisecond
	}
	return c, c.secure()
}

// secure takes over the certificates that the environment names.
func (c *collector) secure() error {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = new(tls.Config)
	if path := exporting("CERTIFICATE"); path != "" {
		pem, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("the OTLP certificate: %w", err)
		}
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("the OTLP certificate: %s holds none", path)
		}
	}
	if path := exporting("CLIENT_CERTIFICATE"); path != "" {
		pair, err := tls.LoadX509KeyPair(path, exporting("CLIENT_KEY"))
		if err != nil {
			return fmt.Errorf("the OTLP client certificate: %w", err)
		}
		t.TLSClientConfig.Certificates = []tls.Certificate{pair}
	}
	c.client.Transport = t
	return nil
}

// Start and Stop are those of otlptrace.Client; there is nothing to start.
func (c *collector) Start(context.Context) error { return nil }

func (c *collector) Stop(context.Context) error {
	c.client.CloseIdleConnections()
	return nil
}

// UploadTraces sends spans, again and again while the collector says that it will take them later.
func (c *collector) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans}) // on the wire the same as a request to export
	if err != nil {
		return err
	}
	if c.gzip {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		w.Write(body) // to memory
		w.Close()
		body = packed.Bytes()
	}
	ctx, stop := context.WithTimeout(ctx, c.timeout)
	defer stop()
	for pause := c.pause; ; pause *= 2 {
		later, err := c.send(ctx, body)
		if later == 0 {
			return err
		}
		select {
		case <-time.After(max(pause, later)):
		case <-ctx.Done():
			return err
		}
	}
}

// send tries once. later is above zero if another try may succeed, and at least as long as the collector asks for.
func (c *collector) send(ctx context.Context, body []byte) (later time.Duration, err error) {
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
	io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // so that the connection can be used again
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		return max(time.Duration(seconds)*time.Second, 1), fmt.Errorf("the collector answered %s", resp.Status)
	}
	if resp.StatusCode/100 != 2 {
		return 0, fmt.Errorf("the collector answered %s", resp.Status)
	}
	return 0, nil
}
