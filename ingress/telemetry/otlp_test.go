package telemetry

import (
	"cmp"
	"compress/gzip"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// collecting returns the URL of a collector that is busy for the first requests, and a channel of
// the exports that it accepted after those. It checks headers that it sets in the environment.
func collecting(t *testing.T, busy int) (url string, exports <-chan *tracepb.TracesData) {
	ch := make(chan *tracepb.TracesData, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			body, _ = gzip.NewReader(body)
		}
		data, err := io.ReadAll(body)
		spans := new(tracepb.TracesData)
		if err := cmp.Or(err, proto.Unmarshal(data, spans)); err != nil || r.Method != "POST" || r.URL.Path != "/v1/traces" ||
			r.Header.Get("Content-Type") != "application/x-protobuf" || r.Header.Get("X-Tenant") != "a b" {
			t.Errorf("the collector got %s %s with %v and %v", r.Method, r.URL.Path, r.Header, err)
		}
		if busy--; busy >= 0 {
			w.WriteHeader(503)
			return
		}
		ch <- spans
	}))
	t.Cleanup(server.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=a%20b,x-other=1")
	return server.URL, ch
}

func TestOTLPClientRetriesWhileTheCollectorIsBusy(t *testing.T) {
	url, exports := collecting(t, 2)
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", url+"/v1/traces")
	c, err := otlpClientFromEnv()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop(t.Context())
	c.backoff = time.Millisecond
	if err := c.UploadTraces(t.Context(), []*tracepb.ResourceSpans{{SchemaUrl: "it"}}); err != nil {
		t.Error(err)
	}
	if got := receive(t, exports); len(got.ResourceSpans) != 1 || got.ResourceSpans[0].SchemaUrl != "it" {
		t.Errorf("the collector got %v", got)
	}
	url, _ = collecting(t, 1000)
	c.url, c.timeout = url+"/v1/traces", 20*time.Millisecond
	if err := c.UploadTraces(t.Context(), nil); err == nil {
		t.Error("an export that never succeeded has no error")
	}
	c.url = url + "/nowhere"
	c.client.Transport = refusingTransport{}
	if err := c.UploadTraces(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "400") {
		t.Errorf("an export that was rejected has the error %v", err)
	}
}

// refusingTransport responds 400.
type refusingTransport struct{}

func (refusingTransport) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 400, Status: "400 Bad Request", Body: http.NoBody}, nil
}

func TestTracingFromEnv(t *testing.T) {
	for _, test := range []struct {
		env string
		on  bool
		err string
	}{
		{"", false, ""},
		{"OTEL_SERVICE_NAME=x", false, ""},
		{"OTEL_TRACES_EXPORTER=none OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", false, ""},
		{"OTEL_SDK_DISABLED=true OTEL_TRACES_EXPORTER=otlp", false, ""},
		{"OTEL_TRACES_EXPORTER=otlp", true, ""},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:1/traces OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", true, ""},
		{"OTEL_TRACES_EXPORTER=zipkin", false, "zipkin"},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=grpc", false, "http/protobuf"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=collector:4317", false, "collector:4317"},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_TIMEOUT=soon", false, "soon"},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_HEADERS=a=%zz", false, "header a"},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_CERTIFICATE=/nowhere", false, "/nowhere"},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_CERTIFICATE=/dev/null", false, "holds none"},
		{"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE=/nowhere", false, "/nowhere"},
	} {
		t.Run(test.env, func(t *testing.T) {
			for setting := range strings.FieldsSeq(test.env) {
				name, value, _ := strings.Cut(setting, "=")
				t.Setenv(name, value)
			}
			tracing, err := TracingFromEnv(slog.New(slog.DiscardHandler))
			tracing.Close(slog.New(slog.DiscardHandler))
			if (tracing != nil) != test.on || (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("on is %t, and the error %v", tracing != nil, err)
			}
		})
	}
}
