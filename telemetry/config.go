package telemetry

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/metrics"
)

// instrumentation is the name of this module's tracer and meter.
const instrumentation = "github.com/onlyonce/onlyonce/telemetry"

// maxLinks is the most links of a span. It is the SDK's default limit too.
const maxLinks = 128

// Config says where traces and metrics go. The zero value uses OpenTelemetry's global providers.
type Config struct {
	// TracerProvider makes spans. Defaults to otel.GetTracerProvider.
	TracerProvider trace.TracerProvider
	// MeterProvider makes metrics. Defaults to otel.GetMeterProvider.
	MeterProvider metric.MeterProvider
	// Messages makes a span for each message too, in the trace of its producer. It costs more the
	// smaller the handler's work is. Defaults to false: one span for each transaction.
	Messages bool
}

// recorder makes the spans and metrics of one part.
type recorder struct {
	tracer     trace.Tracer
	meter      metric.Meter
	perMessage bool
	err        error // of making instruments
}

func newRecorder(t Config) *recorder {
	if t.TracerProvider == nil {
		t.TracerProvider = otel.GetTracerProvider()
	}
	if t.MeterProvider == nil {
		t.MeterProvider = otel.GetMeterProvider()
	}
	return &recorder{tracer: t.TracerProvider.Tracer(instrumentation), meter: t.MeterProvider.Meter(instrumentation), perMessage: t.Messages}
}

func (r *recorder) counter(m *metrics.Metric) metric.Int64Counter {
	c, err := r.meter.Int64Counter(m.Name, metric.WithUnit(m.Unit), metric.WithDescription(m.Help))
	r.failed(m, err)
	return c
}

func (r *recorder) histogram(m *metrics.Metric) metric.Float64Histogram {
	h, err := r.meter.Float64Histogram(m.Name, metric.WithUnit(m.Unit), metric.WithDescription(m.Help), metric.WithExplicitBucketBoundaries(metrics.Buckets...))
	r.failed(m, err)
	return h
}

func (r *recorder) failed(m *metrics.Metric, err error) {
	if err != nil {
		r.err = errors.Join(r.err, fmt.Errorf("telemetry: %s: %w", m.Name, err))
	}
}

// traceOf returns the trace context of a context, as outbox.Call.Trace has it.
func traceOf(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return codec.JoinTrace(carrier["traceparent"], carrier["tracestate"])
}

// spanContext parses what traceOf returns. It is not valid if trace is none.
func spanContext(traceContext string) trace.SpanContext {
	parent, state := codec.SplitTrace(traceContext)
	if parent == "" || len(traceContext) > codec.MaxTrace {
		return trace.SpanContext{}
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": parent, "tracestate": state})
	return trace.SpanContextFromContext(ctx)
}

// end ends a span. It keeps an error's type and not its text, which may quote a payload.
func end(span trace.Span, err error, attrs ...attribute.KeyValue) {
	span.SetAttributes(attrs...)
	if err != nil {
		span.SetStatus(codes.Error, "")
		span.SetAttributes(attribute.String(errorType, fmt.Sprintf("%T", err)))
	}
	span.End()
}
