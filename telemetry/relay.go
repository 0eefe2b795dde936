package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/onlyonce/onlyonce/internal/metrics"
	"github.com/onlyonce/onlyonce/outbox"
)

// attempt is the attempt that a context belongs to.
type attempt struct {
	span  trace.Span
	begun time.Time
}

type attemptKey struct{}

// Relay adds telemetry to a relay's configuration: hooks after those that are there, and
// RelayConfig.Trace if it is not set. Call it before outbox.NewRelay, once for each configuration.
func Relay(c *outbox.RelayConfig, t Config) error {
	r := newRecorder(t)
	attempts, failures := r.counter(metrics.OutboxAttempts), r.counter(metrics.OutboxFailures)
	duration, delay := r.histogram(metrics.OutboxAttemptDuration), r.histogram(metrics.OutboxDelay)
	if r.err != nil {
		return r.err
	}
	sinkOf := func(sink string) attribute.KeyValue { return attribute.String("sink", sink) }
	c.Hooks = outbox.JoinHooks(c.Hooks, outbox.Hooks{
		AttemptStart: func(ctx context.Context, a outbox.Attempt) context.Context {
			options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
				attribute.String(messagingSystem, "onlyonce"), attribute.String(messagingName, a.Sink), attribute.String(messagingOperation, "send"),
				attribute.String(attrKind, string(a.Kind)), attribute.String(attrName, a.Name), attribute.Int(attrAttempt, a.Attempt))}
			if of := spanContext(a.Trace); of.IsValid() {
				options = append(options, trace.WithLinks(trace.Link{SpanContext: of}))
			}
			ctx, span := r.tracer.Start(ctx, string(a.Kind)+" "+a.Sink, options...)
			return context.WithValue(ctx, attemptKey{}, attempt{span, time.Now()})
		},
		AttemptEnd: func(ctx context.Context, a outbox.Attempt, result outbox.Result) {
			of, ok := ctx.Value(attemptKey{}).(attempt)
			if !ok {
				return
			}
			duration.Record(ctx, time.Since(of.begun).Seconds(), metric.WithAttributes(sinkOf(a.Sink)))
			end(of.span, result.Err, attribute.String(attrOutcome, result.Outcome.String()))
		},
		Settled: func(s outbox.Settled) {
			attempts.Add(context.Background(), 1, metric.WithAttributes(sinkOf(s.Sink), attribute.String("outcome", string(s.As))))
			if s.As != outbox.SettledRetry && s.As != outbox.SettledAccepted {
				delay.Record(context.Background(), s.Age.Seconds(), metric.WithAttributes(sinkOf(s.Sink)))
			}
		},
		Failed: func(f outbox.Failed) {
			failures.Add(context.Background(), 1, metric.WithAttributes(sinkOf(f.Sink)))
		},
	})
	if c.Trace == nil {
		c.Trace = traceOf
	}
	return nil
}
