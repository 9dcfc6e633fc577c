package telemetry

import (
	"context"
	"maps"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// A Span is one timed part of a request. The methods of the zero value, which is no span, do
// nothing and cost nothing.
type Span struct{ span trace.Span }

// startSpan begins a span below the one in ctx. The caller must end the span.
func (t *Tracing) startSpan(ctx context.Context, name string, kind trace.SpanKind) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(kind))
	return ctx, Span{span}
}

// Recording reports whether the span will be exported. If not, computing attributes is a waste.
func (s Span) Recording() bool { return s.span != nil && s.span.IsRecording() }

// startRequest begins the span of a request, below the client's own if the client sent one, and
// returns the request with the span in the context. t may be nil.
func (t *Tracing) startRequest(r *Request, in *http.Request) *http.Request {
	if t == nil || r.Probe {
		return in
	}
	ctx := propagation.TraceContext{}.Extract(in.Context(), propagation.HeaderCarrier(in.Header))
	ctx, span := t.startSpan(ctx, in.Method+" "+r.Route, trace.SpanKindServer)
	r.span = span.span
	return in.WithContext(ctx)
}

// endSpan ends the span, if any, of a finished request.
func (r *Request) endSpan() {
	if r.span == nil {
		return
	}
	r.span.SetAttributes(
		attribute.String("http.request.method", r.Method),
		attribute.String("http.route", r.Route),
		attribute.Int("http.response.status_code", r.Status),
		attribute.String("berth.request_id", r.ID),
		attribute.String("berth.outcome", r.Outcome()),
		attribute.String("gen_ai.request.model", r.Metrics.model),
	)
	if r.Status >= http.StatusInternalServerError || r.Truncated && r.ErrorCode != CodeClientGone {
		r.span.SetStatus(codes.Error, r.ErrorCode)
	}
	r.span.End()
}

// StartChoose begins the span of a choice, which EndChoose must end.
func (t *Telemetry) StartChoose(ctx context.Context) Span {
	_, span := t.tracing.startSpan(ctx, "choose", trace.SpanKindInternal)
	return span
}

// EndChoose ends the span of a choice. errorCode is empty if a replica was chosen; r then names it.
func (s Span) EndChoose(r *Request, errorCode string) {
	if !s.Recording() {
		return
	}
	s.span.SetAttributes(attribute.String("berth.policy", r.Policy), attribute.Float64("berth.waited_ms", roundedMS(r.Waited)))
	if errorCode != "" {
		s.SetError(errorCode)
	} else {
		s.span.SetAttributes(attribute.String("berth.replica", r.Replica), attribute.Int("berth.rank", r.Rank))
	}
	s.span.End()
}

// StartAttempt begins the span of an attempt, which EndAttempt must end. The attempt goes on with
// the returned context.
func (t *Telemetry) StartAttempt(ctx context.Context) (context.Context, Span) {
	return t.tracing.startSpan(ctx, "attempt", trace.SpanKindClient)
}

// EndAttempt ends the span of an attempt. It may be deferred: the record is read at the time of the
// call, after a panic too.
func (s Span) EndAttempt(r *Request) {
	if !s.Recording() {
		return
	}
	u := r.Tap.Usage()
	s.span.SetAttributes(attribute.String("berth.replica", r.Replica), attribute.String("gen_ai.request.model", r.Model),
		attribute.Int64("gen_ai.usage.input_tokens", u.PromptTokens), attribute.Int64("gen_ai.usage.output_tokens", u.CompletionTokens))
	s.span.End()
}

// SetError marks the span as failed.
func (s Span) SetError(text string) {
	if s.span != nil {
		s.span.SetStatus(codes.Error, text)
	}
}

// InjectTrace returns the request header that makes a replica's spans children of the one in ctx.
// h, which an earlier attempt may still use, is not changed; without tracing, h itself is returned.
func (t *Telemetry) InjectTrace(ctx context.Context, h http.Header) http.Header {
	if t.tracing == nil {
		return h
	}
	h = maps.Clone(h)
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
	return h
}
