package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/metrics"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/queue"
	"github.com/onlyonce/onlyonce/webhook"
)

// instrumentation is the name of this module's tracer and meter.
const instrumentation = "github.com/onlyonce/onlyonce/telemetry"

// The headers of a trace context.
const (
	traceparent = "traceparent"
	tracestate  = "tracestate"
)

// maxLinks is the most links of a span. It is the SDK's default limit too.
const maxLinks = 128

// Config sets the destinations of traces and metrics. The zero value uses OpenTelemetry's global
// providers.
type Config struct {
	// TracerProvider makes spans. Defaults to otel.GetTracerProvider.
	TracerProvider trace.TracerProvider
	// MeterProvider makes metrics. Defaults to otel.GetMeterProvider.
	MeterProvider metric.MeterProvider
	// Messages adds a span for each message, in the trace of its producer. The smaller the
	// handler's work, the higher its relative cost. Defaults to false: one span for each
	// transaction.
	Messages bool

	// Interval is how often [Observe] queries the database, at most 15 minutes. Defaults to 10 s.
	// [Instrument] ignores it.
	Interval time.Duration
	// Logger receives the errors of [Observe]. Defaults to slog.Default.
	Logger *slog.Logger
}

// Instrument adds telemetry to the configuration of a consumer (whose Scope must be set), a relay,
// an HTTP layer, a webhook endpoint or a queue (whose Name must be set): hooks after the existing
// ones, and its Trace if it is not set. Call it before the constructor, once for each
// configuration. If an endpoint consumes its events, instrument its Consumer too.
func Instrument[C consumer.Config | outbox.RelayConfig | idempotency.Config | webhook.Config | queue.Config](
	c *C,
	t Config,
) error {
	switch c := any(c).(type) {
	case *consumer.Config:
		return instrumentConsumer(c, t)
	case *outbox.RelayConfig:
		return instrumentRelay(c, t)
	case *idempotency.Config:
		return instrumentLayer(c, t)
	case *queue.Config:
		return instrumentQueue(c, t)
	}
	return instrumentEndpoint(any(c).(*webhook.Config), t)
}

// recorder makes the spans and metrics of one part.
type recorder struct {
	tracers    trace.TracerProvider
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
	r := &recorder{
		tracers:    t.TracerProvider,
		tracer:     t.TracerProvider.Tracer(instrumentation),
		meter:      t.MeterProvider.Meter(instrumentation),
		perMessage: t.Messages,
	}
	if reflect.ValueOf(t.MeterProvider).Comparable() {
		if _, had := reporting.LoadOrStore(t.MeterProvider, true); !had {
			r.refusals()
		}
	}
	return r
}

// reporting has the providers that report the process's refusals, so that each reports them once.
// (One that cannot be compared, which no SDK has, reports none.)
var reporting sync.Map

// refusals reports how often databases of the process have refused writes.
func (r *recorder) refusals() {
	m := metrics.DatabaseRefusals
	_, err := r.meter.Int64ObservableCounter(
		m.Name,
		metric.WithUnit(m.Unit),
		metric.WithDescription(m.Help),
		metric.WithInt64Callback(
			func(_ context.Context, to metric.Int64Observer) error {
				for database, n := range primary.Refusals() {
					to.Observe(n, metric.WithAttributes(attribute.String("database", database)))
				}
				return nil
			}),
	)
	r.failed(m, err)
}

func (r *recorder) counter(m *metrics.Metric) metric.Int64Counter {
	c, err := r.meter.Int64Counter(m.Name, metric.WithUnit(m.Unit), metric.WithDescription(m.Help))
	r.failed(m, err)
	return c
}

func (r *recorder) histogram(m *metrics.Metric) metric.Float64Histogram {
	h, err := r.meter.Float64Histogram(
		m.Name,
		metric.WithUnit(m.Unit),
		metric.WithDescription(m.Help),
		metric.WithExplicitBucketBoundaries(metrics.Buckets...),
	)
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
	return codec.JoinTrace(carrier[traceparent], carrier[tracestate])
}

// carried is the trace context that a message or a call carries, for a propagator to read.
type carried struct{ parent, state string }

func (c carried) Get(name string) string {
	switch name {
	case traceparent:
		return c.parent
	case tracestate:
		return c.state
	}
	return ""
}

func (carried) Set(string, string) {} // nothing injects
func (carried) Keys() []string     { return []string{traceparent, tracestate} }

// spanOf returns the span that a traceparent and a tracestate name. It is not valid if they name
// none.
func spanOf[text string | []byte](parent, state text) trace.SpanContext {
	if len(parent)+len(state) >= codec.MaxTrace {
		return trace.SpanContext{}
	}
	if len(state) == 0 && len(parent) == 55 && string(parent[:3]) == "00-" {
		return parse(parent)
	}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carried{
		string(parent),
		string(state),
	}))
}

// parse returns what the propagator makes of a traceparent of version 00, which has 55 bytes. It
// does not make the propagator's strings and contexts, which are a quarter of the memory that a
// message's telemetry takes.
func parse[text string | []byte](p text) trace.SpanContext {
	var b [55]byte // whose indexes need no checks
	copy(b[:], p)
	flags := b[54] - '0'
	separated := b[35] == '-' && b[52] == '-'
	if !separated || b[53] != '0' || flags > 3 {
		return trace.SpanContext{}
	}
	c := trace.SpanContextConfig{TraceFlags: trace.TraceFlags(flags), Remote: true}
	var seen byte
	for i := range c.TraceID {
		high, low := digits[b[3+2*i]], digits[b[4+2*i]]
		c.TraceID[i] = high<<4 | low
		seen |= high | low
	}
	for i := range c.SpanID {
		high, low := digits[b[36+2*i]], digits[b[37+2*i]]
		c.SpanID[i] = high<<4 | low
		seen |= high | low
	}
	if seen > 15 || !c.TraceID.IsValid() || !c.SpanID.IsValid() {
		return trace.SpanContext{}
	}
	return trace.NewSpanContext(c)
}

// digits has the value of each hexadecimal digit in lower case, and 255 for every other byte.
var digits = func() (of [256]byte) {
	for i := range of {
		of[i] = 255
	}
	for value, digit := range []byte("0123456789abcdef") {
		of[digit] = byte(value) //nolint:gosec // below 16
	}
	return of
}()

// end ends a span. It keeps an error's type and not its text, which may quote a payload.
func end(span trace.Span, err error, attrs ...attribute.KeyValue) {
	if len(attrs) > 0 {
		span.SetAttributes(attrs...)
	}
	if err != nil {
		span.SetStatus(codes.Error, "")
		span.SetAttributes(attribute.String(errorType, fmt.Sprintf("%T", err)))
	}
	span.End()
}
