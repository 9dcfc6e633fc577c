package ingress

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"berth/routers"
)

// tracing makes OpenTelemetry spans: one of each request, and below it one of each choice of a replica and one of each
// attempt there, under which the replica hangs its own. A nil one makes none: headers of traces then pass as they came.
type tracing struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// traceTimeout is how long the end waits for a collector to take the last spans.
const traceTimeout = 5 * time.Second

// untraced is a span that is none.
var untraced = trace.SpanFromContext(context.Background())

// tracingByEnvironment is what the standard variables of OpenTelemetry ask for, which also say where spans go and which
// requests have some; nil if no exporter and no endpoint is set.
func tracingByEnvironment(log *slog.Logger) (*tracing, error) {
	exporter := os.Getenv("OTEL_TRACES_EXPORTER")
	switch {
	case strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true"), exporter == "none", exporter == "" && exporting("ENDPOINT") == "":
		return nil, nil
	case exporter != "" && exporter != "otlp":
		return nil, fmt.Errorf("OTEL_TRACES_EXPORTER is %q; the exporters of traces are otlp and none", exporter)
	}
	c, err := collectorByEnvironment()
	if err != nil {
		return nil, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("spans are lost", "error", err) }))
	to, err := otlptrace.New(context.Background(), c)
	if err != nil {
		return nil, err
	}
	return newTracing(sdk.WithBatcher(newReportingExporter(to, log)))
}

// reportingExporter logs an outage of the collector in two lines, however many exports fail in it.
type reportingExporter struct {
	sdk.SpanExporter
	outage outage
}

func newReportingExporter(to sdk.SpanExporter, log *slog.Logger) *reportingExporter {
	return &reportingExporter{to, outage{log: log, level: slog.LevelWarn, begin: "spans are lost: the collector cannot be reached", over: "the collector takes spans again"}}
}

// ExportSpans returns no error: it has been logged. The batcher makes one call at a time.
func (e *reportingExporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	lost := 0
	if err != nil {
		lost = len(spans)
	}
	e.outage.record(err, lost)
	return nil
}

// Shutdown is called after the last export.
func (e *reportingExporter) Shutdown(ctx context.Context) error {
	e.outage.end("the last spans are lost")
	return e.SpanExporter.Shutdown(ctx)
}

func newTracing(export sdk.TracerProviderOption) (*tracing, error) {
	who, err := resource.New(context.Background(),
		resource.WithAttributes(attribute.String("service.name", "berth")), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	p := sdk.NewTracerProvider(export, sdk.WithResource(who))
	return &tracing{provider: p, tracer: p.Tracer("berth")}, nil
}

// close exports what has yet to be exported.
func (t *tracing) close(log *slog.Logger) {
	if t == nil {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), traceTimeout)
	defer stop()
	if err := t.provider.Shutdown(ctx); err != nil {
		log.Warn("the last spans are lost", "error", err)
	}
}

// request is the middleware that makes the span of a request, below the client's own if it sent one.
func (t *tracing) request(c *gin.Context) {
	at := route(c)
	if probes[at] {
		return
	}
	ctx := propagation.TraceContext{}.Extract(c.Request.Context(), propagation.HeaderCarrier(c.Request.Header))
	ctx, span := t.begin(ctx, c.Request.Method+" "+at, trace.SpanKindServer)
	defer func() {
		v := stateOf(c)
		status := v.answered()
		span.SetAttributes(
			attribute.String("http.request.method", c.Request.Method),
			attribute.String("http.route", at),
			attribute.Int("http.response.status_code", status),
			attribute.String("berth.request_id", requestID(c)),
			attribute.String("berth.outcome", v.outcome(status)),
			attribute.String("gen_ai.request.model", v.model),
		)
		if status >= http.StatusInternalServerError || v.cut && v.code != codeGone {
			span.SetStatus(codes.Error, v.code)
		}
		span.End()
	}()
	c.Request = c.Request.WithContext(ctx)
	c.Next()
}

// begin makes a span below that of ctx, which must be ended.
func (t *tracing) begin(ctx context.Context, name string, kind trace.SpanKind) (context.Context, trace.Span) {
	if t == nil {
		return ctx, untraced
	}
	return t.tracer.Start(ctx, name, trace.WithSpanKind(kind))
}

// inject returns a request's header by which a replica hangs its spans below that of ctx. h, which may be in use, stays as it is.
func (t *tracing) inject(ctx context.Context, h http.Header) http.Header {
	if t == nil {
		return h
	}
	h = maps.Clone(h)
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
	return h
}

// chose ends the span of a choice.
func (x *proxyRequest) chose(span trace.Span, sel *routers.Selection, err error) {
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.String("berth.policy", x.model.config.Router.Class),
		attribute.Float64("berth.waited_ms", inMS(x.payload.Waited)))
	if err != nil {
		span.SetStatus(codes.Error, toAPIError(err).code)
	} else {
		span.SetAttributes(attribute.String("berth.replica", sel.Replica().ID()), attribute.Int("berth.rank", sel.Rank()))
	}
	span.End()
}

// attempted ends the span of an attempt, also one that ends in a panic.
func (x *proxyRequest) attempted(span trace.Span) {
	if !span.IsRecording() {
		return
	}
	u := x.tap.Usage()
	span.SetAttributes(attribute.String("berth.replica", x.replica), attribute.String("gen_ai.request.model", x.model.config.ID),
		attribute.Int64("gen_ai.usage.input_tokens", u.PromptTokens), attribute.Int64("gen_ai.usage.output_tokens", u.CompletionTokens))
	span.End()
}
