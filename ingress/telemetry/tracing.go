package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Tracing creates OpenTelemetry spans: one per request, and children of that for each choice of a
// replica and each attempt. The replica gets the context of the attempt's span. A nil Tracing
// creates none; trace headers then pass unchanged.
type Tracing struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// tracingCloseTimeout bounds the export of the last spans in Close.
const tracingCloseTimeout = 5 * time.Second

// TracingFromEnv returns the tracing configured by the standard variables of OpenTelemetry,
// collector and sampling included. It returns nil if neither an exporter nor an endpoint is set.
func TracingFromEnv(log *slog.Logger) (*Tracing, error) {
	exporter := os.Getenv("OTEL_TRACES_EXPORTER")
	switch {
	case strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true"), exporter == "none", exporter == "" && otlpEnv("ENDPOINT") == "":
		return nil, nil
	case exporter != "" && exporter != "otlp":
		return nil, fmt.Errorf("OTEL_TRACES_EXPORTER is %q; the exporters of traces are otlp and none", exporter)
	}
	client, err := otlpClientFromEnv()
	if err != nil {
		return nil, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("spans are lost", "error", err) }))
	to, err := otlptrace.New(context.Background(), client)
	if err != nil {
		return nil, err
	}
	return NewTracing(sdk.WithBatcher(newLoggingExporter(to, log)))
}

// NewTracing returns a Tracing that exports spans by the given option. Close must be called.
func NewTracing(export sdk.TracerProviderOption) (*Tracing, error) {
	service, err := resource.New(context.Background(),
		resource.WithAttributes(attribute.String("service.name", "berth")), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	p := sdk.NewTracerProvider(export, sdk.WithResource(service))
	return &Tracing{provider: p, tracer: p.Tracer("berth")}, nil
}

// Close exports the remaining spans, or gives up after a few seconds. t may be nil.
func (t *Tracing) Close(log *slog.Logger) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), tracingCloseTimeout)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		log.Warn("the last spans are lost", "error", err)
	}
}

// loggingExporter logs an outage of the collector in two lines, for any number of failed exports.
type loggingExporter struct {
	sdk.SpanExporter
	outage outage
}

func newLoggingExporter(to sdk.SpanExporter, log *slog.Logger) *loggingExporter {
	return &loggingExporter{to, outage{log: log, level: slog.LevelWarn, begin: "spans are lost: the collector cannot be reached", over: "the collector takes spans again"}}
}

// ExportSpans logs errors and returns none. The batcher makes one call at a time.
func (e *loggingExporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	lost := 0
	if err != nil {
		lost = len(spans)
	}
	e.outage.record(err, lost)
	return nil
}

// Shutdown is called after the last export.
func (e *loggingExporter) Shutdown(ctx context.Context) error {
	e.outage.logEnd("the last spans are lost")
	return e.SpanExporter.Shutdown(ctx)
}
