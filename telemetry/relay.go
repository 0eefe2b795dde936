package telemetry

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/metrics"
	"github.com/onlyonce/onlyonce/outbox"
)

// attempt is the attempt that a context belongs to.
type attempt struct {
	span  trace.Span
	begun time.Time
}

type attemptKey struct{}

func instrumentRelay(c *outbox.RelayConfig, t Config) error {
	r := newRecorder(t)
	attempts, failures := r.counter(metrics.OutboxAttempts), r.counter(metrics.OutboxFailures)
	duration, delay := r.histogram(metrics.OutboxAttemptDuration), r.histogram(metrics.OutboxDelay)
	sent := r.messaging(messagingSent, "Attempts to send a call.",
		messagingDuration, "Time that the sink took for an attempt to send a call.")
	if r.err != nil {
		return r.err
	}
	sinkOf := func(sink string) attribute.KeyValue { return attribute.String("sink", sink) }
	for _, s := range c.Sinks { // so that the counters are there, at 0
		if s != nil {
			for _, outcome := range metrics.OutboxAttempts.Outcomes {
				attempts.Add(
					context.Background(),
					0,
					metric.WithAttributes(sinkOf(s.Name()), attribute.String("outcome", outcome)),
				)
			}
			failures.Add(context.Background(), 0, metric.WithAttributes(sinkOf(s.Name())))
		}
	}
	c.Hooks = c.Hooks.Join(outbox.Hooks{
		AttemptStart: func(ctx context.Context, a outbox.AttemptEvent) context.Context {
			options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
				attribute.String(messagingSystem, "onlyonce"),
				attribute.String(messagingName, a.Sink),
				attribute.String(messagingOperation, "send"),
				attribute.String(attrKind, string(a.Kind)),
				attribute.String(attrName, a.Name),
				attribute.Int(attrAttempt, a.Number),
			)}
			if of := spanOf(codec.SplitTrace(a.Trace)); of.IsValid() {
				options = append(options, trace.WithLinks(trace.Link{SpanContext: of}))
			}
			ctx, span := r.tracer.Start(ctx, string(a.Kind)+" "+a.Sink, options...)
			return context.WithValue(ctx, attemptKey{}, attempt{span, time.Now()})
		},
		AttemptEnd: func(ctx context.Context, a outbox.AttemptEvent, result outbox.Result) {
			of, ok := ctx.Value(attemptKey{}).(attempt)
			if !ok {
				return
			}
			if a.Kind == outbox.AttemptSend { // the metric is the sink's time
				took := time.Since(of.begun).Seconds()
				duration.Record(ctx, took, metric.WithAttributes(sinkOf(a.Sink)))
				attrs := []attribute.KeyValue{
					attribute.String(messagingSystem, "onlyonce"),
					attribute.String(messagingOpName, messagingOpSend),
					attribute.String(messagingName, a.Sink),
				}
				if result.Err != nil {
					attrs = append(attrs, attribute.String(errorType, fmt.Sprintf("%T", result.Err)))
				}
				sent.messages.Add(ctx, 1, metric.WithAttributes(attrs...))
				sent.duration.Record(ctx, took, metric.WithAttributes(attrs...))
			}
			end(of.span, result.Err, attribute.String(attrOutcome, result.Outcome.String()))
		},
		Settled: func(s outbox.SettledEvent) {
			attempts.Add(
				context.Background(),
				1,
				metric.WithAttributes(sinkOf(s.Sink), attribute.String("outcome", string(s.State))),
			)
			if s.Final {
				delay.Record(context.Background(), s.Age.Seconds(), metric.WithAttributes(sinkOf(s.Sink)))
			}
		},
		TransactionFailed: func(f outbox.TransactionFailedEvent) {
			failures.Add(context.Background(), 1, metric.WithAttributes(sinkOf(f.Sink)))
		},
	})
	if c.Trace == nil {
		c.Trace = traceOf
	}
	return nil
}
