package ingress

import (
	"cmp"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"berth/config"
	"berth/ingress/telemetry"
)

// traced starts a server whose spans go to the exporter that it returns.
func traced(t *testing.T, models ...config.Model) (*front, *tracetest.InMemoryExporter) {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	tracing, err := telemetry.NewTracing(sdk.WithSyncer(spans))
	if err != nil {
		t.Fatal(err)
	}
	return serveBy(t, func(log *slog.Logger) (*Server, error) { return newServer(configured(models...), log, tracing) }), spans
}

// spansOf waits for the span of a request, which ends last, and returns all spans by their names.
func (f *front) spansOf(spans *tracetest.InMemoryExporter, request string) map[string][]tracetest.SpanStub {
	f.t.Helper()
	byName := make(map[string][]tracetest.SpanStub)
	f.eventually("the span of the request is there", func() bool {
		clear(byName)
		for _, span := range spans.GetSpans() {
			byName[span.Name] = append(byName[span.Name], span)
		}
		return len(byName[request]) > 0
	})
	return byName
}

func attributes(span tracetest.SpanStub) map[string]attribute.Value {
	values := make(map[string]attribute.Value)
	for _, a := range span.Attributes {
		values[string(a.Key)] = a.Value
	}
	return values
}

// panicking is a processor of spans that panics at the end of a choice.
type panicking struct{ sdk.SpanProcessor }

func (panicking) OnEnd(span sdk.ReadOnlySpan) {
	if span.Name() == "choose" {
		panic("the processor panics")
	}
}

// A panic between the choice and the dispatch releases the slot.
func TestTracingPanicReleasesTheSlot(t *testing.T) {
	tracing, err := telemetry.NewTracing(sdk.WithSpanProcessor(panicking{sdk.NewSimpleSpanProcessor(tracetest.NewInMemoryExporter())}))
	if err != nil {
		t.Fatal(err)
	}
	f := serveBy(t, func(log *slog.Logger) (*Server, error) {
		return newServer(configured(modelOn("m", refusing(1))), log, tracing)
	})
	if r := f.chat("m"); r.StatusCode != http.StatusInternalServerError {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
	if log := f.log.take(); !strings.Contains(log, "the processor panics") {
		t.Errorf("the log is\n%s", log)
	}
	f.idle()
}

const (
	traceID      = "4bf92f3577b34da6a3ce929d0e0e4736"
	clientSpan   = "00f067aa0ba902b7"
	traceparent  = "00-" + traceID + "-" + clientSpan + "-01"
	requestSpan  = "POST /chat/completions"
	unsampledOne = "00-" + traceID + "-" + clientSpan + "-00"
)

func TestTracingFromTheClientToTheReplica(t *testing.T) {
	headers := make(chan http.Header, 1)
	f, spans := traced(t, modelOn("m", refusing(1), upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		headers <- r.Header
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"usage":{"prompt_tokens":4,"completion_tokens":3}}`)
	})))
	f.turn("m")
	r := f.post("/v1/chat/completions", chat("m"), "traceparent", traceparent, "tracestate", "vendor=1", "baggage", "a=b", "X-Request-Id", "r-1")
	if r.StatusCode != 200 {
		t.Fatalf("got %d %s", r.StatusCode, r.body)
	}
	all := f.spansOf(spans, requestSpan)
	if len(all["choose"]) != 2 || len(all["attempt"]) != 2 || len(all) != 3 {
		t.Fatalf("the spans are %v", all)
	}
	request := all[requestSpan][0]
	if got := request.Parent.SpanID().String(); got != clientSpan || request.SpanKind != trace.SpanKindServer || request.Status.Code != codes.Unset {
		t.Errorf("the request is a span of kind %v and status %v below %s", request.SpanKind, request.Status, got)
	}
	for _, span := range append(all["choose"], all["attempt"]...) {
		if span.SpanContext.TraceID().String() != traceID || span.Parent.SpanID() != request.SpanContext.SpanID() {
			t.Errorf("%s is not below the request: %v", span.Name, span.Parent)
		}
	}
	failed, succeeded := all["attempt"][0], all["attempt"][1]
	if failed.Status.Code != codes.Error || succeeded.Status.Code != codes.Unset || succeeded.SpanKind != trace.SpanKindClient {
		t.Errorf("the attempts ended with %v and %v, of kind %v", failed.Status, succeeded.Status, succeeded.SpanKind)
	}
	header := receive(t, headers)
	if got, want := header.Get("traceparent"), "00-"+traceID+"-"+succeeded.SpanContext.SpanID().String()+"-01"; got != want {
		t.Errorf("the replica got the parent %s, want %s", got, want)
	}
	if header.Get("tracestate") != "vendor=1" || header.Get("baggage") != "a=b" {
		t.Errorf("the replica got %v", header)
	}
	got := attributes(request)
	if got["http.response.status_code"].AsInt64() != 200 || got["berth.request_id"].AsString() != "r-1" ||
		got["berth.outcome"].AsString() != "finished" || got["gen_ai.request.model"].AsString() != "m" {
		t.Errorf("the request has the attributes %v", request.Attributes)
	}
	if got := attributes(succeeded); got["berth.replica"].AsString() != "b" || got["gen_ai.usage.input_tokens"].AsInt64() != 4 {
		t.Errorf("the attempt has the attributes %v", succeeded.Attributes)
	}
	if got := attributes(all["choose"][1]); got["berth.replica"].AsString() != "b" || got["berth.rank"].AsInt64() != 1 {
		t.Errorf("the choice has the attributes %v", all["choose"][1].Attributes)
	}
}

func TestTracingStatusAndOutcomeOfEachEnd(t *testing.T) {
	f, spans := traced(t, modelOn("down", refusing(1)), modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, textChunk)
		w.(http.Flusher).Flush()
		if r.Header.Get("X-Die") != "" {
			panic(http.ErrAbortHandler)
		}
		<-r.Context().Done()
	})))
	for name, test := range map[string]struct {
		request func()
		outcome string
		status  codes.Code
	}{
		"a client that leaves": {func() {
			ctx, leave := context.WithCancel(t.Context())
			f.stream(ctx, f.h2).read(len(textChunk))
			leave()
		}, "client_gone", codes.Unset},
		"a replica that dies": {func() { f.post("/v1/chat/completions", chat("m"), "X-Die", "1") }, "upstream_broken", codes.Error},
		"no replica":          {func() { f.chat("down") }, "refused", codes.Error},
		"no model":            {func() { f.chat("other") }, "refused", codes.Unset},
	} {
		spans.Reset()
		test.request()
		span := f.spansOf(spans, requestSpan)[requestSpan][0]
		if got := attributes(span)["berth.outcome"].AsString(); got != test.outcome || span.Status.Code != test.status {
			t.Errorf("%s: %s with status %v", name, got, span.Status)
		}
	}
	spans.Reset()
	f.get("/health")
	f.get("/v1/models")
	if all := f.spansOf(spans, "GET /models"); len(all) != 1 {
		t.Errorf("there are more spans: %v", all)
	}
}

func TestTracingOffPassesTraceHeadersUnchanged(t *testing.T) {
	headers := make(chan http.Header, 1)
	f := serve(t, modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		headers <- r.Header
	})))
	for _, parent := range []string{traceparent, unsampledOne, "nonsense", ""} {
		f.post("/v1/completions", chat("m"), "traceparent", parent, "tracestate", "a=1")
		if header := receive(t, headers); header.Get("traceparent") != parent || header.Get("tracestate") != "a=1" {
			t.Errorf("of %q the replica got %v", parent, header)
		}
	}
}

// An unsampled trace is passed on as unsampled, so that the replica does not record it either.
func TestTracingOfAnUnsampledTraceExportsNothing(t *testing.T) {
	headers := make(chan http.Header, 1)
	f, spans := traced(t, modelOn("m", upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		headers <- r.Header
	})))
	f.post("/v1/completions", chat("m"), "traceparent", unsampledOne)
	if got := receive(t, headers).Get("traceparent"); !strings.HasPrefix(got, "00-"+traceID) || !strings.HasSuffix(got, "-00") || got == unsampledOne {
		t.Errorf("the replica got %s", got)
	}
	if got := spans.GetSpans(); len(got) != 0 {
		t.Errorf("there are spans: %v", got)
	}
}

func TestTracingIsConfiguredByTheStandardVariables(t *testing.T) {
	exports := make(chan *tracepb.TracesData, 10)
	url := upstream(t, func(_ http.ResponseWriter, r *http.Request) {
		body, err := gzip.NewReader(r.Body)
		if err != nil {
			t.Error(err)
			return
		}
		data, err := io.ReadAll(body)
		spans := new(tracepb.TracesData)
		if err := cmp.Or(err, proto.Unmarshal(data, spans)); err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("X-Tenant") != "a b" {
			t.Errorf("the collector got %s with %v and %v", r.URL.Path, r.Header, err)
		}
		exports <- spans
	})
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=a%20b,x-other=1")
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url+"/")
	t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	f := serve(t, modelOn("m", upstream(t, ok)))
	f.chat("m")
	f.end() // which exports the remaining spans
	spans := receive(t, (<-chan *tracepb.TracesData)(exports)).ResourceSpans[0]
	var names []string
	for _, span := range spans.ScopeSpans[0].Spans {
		names = append(names, span.Name)
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{requestSpan, "attempt", "choose"}) {
		t.Errorf("the spans are %v", names)
	}
	resource := spans.Resource.String()
	for _, text := range []string{"service.name", `"berth"`, "deployment.environment.name"} {
		if !strings.Contains(resource, text) {
			t.Errorf("there is no %s in %s", text, resource)
		}
	}
}
