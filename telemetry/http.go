package telemetry

import (
	"cmp"
	"context"
	"strconv"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/internal/metrics"
	"github.com/onlyonce/onlyonce/webhook"
)

// requestKey is the context key of a request's span. It is ours alone, so that the span which ends
// is the one that we have begun.
type requestKey struct{}

func (r *recorder) startRequest(ctx context.Context, name string, attrs ...attribute.KeyValue) context.Context {
	ctx, span := r.tracer.Start(ctx, name, trace.WithAttributes(attrs...))
	return context.WithValue(ctx, requestKey{}, span)
}

func endRequest(ctx context.Context, err error, attrs ...attribute.KeyValue) {
	if span, ok := ctx.Value(requestKey{}).(trace.Span); ok {
		end(span, err, attrs...)
	}
}

func instrumentLayer(c *idempotency.Config, t Config) error {
	r := newRecorder(t)
	requests, duration := r.counter(metrics.HTTPRequests), r.histogram(metrics.HTTPDuration)
	if r.err != nil {
		return r.err
	}
	var routes sync.Map
	c.Hooks = c.Hooks.Join(idempotency.Hooks{
		ServeStart: func(ctx context.Context, s idempotency.ServeStart) context.Context {
			return r.startRequest(ctx, "serve "+s.Pattern, attribute.String(attrRoute, s.Pattern))
		},
		ServeEnd: func(ctx context.Context, s idempotency.ServeEnd) {
			route := attribute.String("route", s.Pattern)
			if _, had := routes.LoadOrStore(s.Pattern, true); !had { // so that each outcome is there, from 0
				for _, outcome := range metrics.HTTPRequests.Outcomes {
					requests.Add(ctx, 0, metric.WithAttributes(route, attribute.String("outcome", outcome)))
				}
			}
			requests.Add(ctx, 1, metric.WithAttributes(route, attribute.String("outcome", string(s.Outcome))))
			duration.Record(ctx, s.Took.Seconds(), metric.WithAttributes(route))
			endRequest(
				ctx,
				nil,
				attribute.String(attrOutcome, string(s.Outcome)),
				attribute.Int(attrStatus, s.Status),
				attribute.Int(attrRuns, s.Runs),
			)
		},
	})
	if c.Trace == nil {
		c.Trace = traceOf
	}
	return nil
}

func instrumentEndpoint(c *webhook.Config, t Config) error {
	r := newRecorder(t)
	received, missed := r.counter(metrics.WebhookReceived), r.counter(metrics.WebhookMissed)
	duration := r.histogram(metrics.WebhookDuration)
	if r.err != nil {
		return r.err
	}
	endpoint := attribute.String("endpoint", c.Name)
	missed.Add(context.Background(), 0, metric.WithAttributes(endpoint)) // so that the counters are there, at 0
	for outcome, status := range map[string]string{string(webhook.Accepted): "200", "refused": "401"} {
		received.Add(
			context.Background(),
			0,
			metric.WithAttributes(endpoint, attribute.String("outcome", outcome), attribute.String("status", status)),
		)
	}
	c.Hooks = c.Hooks.Join(webhook.Hooks{
		ReceiveStart: func(ctx context.Context, s webhook.ReceiveStart) context.Context {
			return r.startRequest(ctx, "receive "+s.Endpoint, attribute.String(attrEndpoint, s.Endpoint))
		},
		ReceiveEnd: func(ctx context.Context, e webhook.ReceiveEnd) {
			outcome := cmp.Or(string(e.Outcome), "refused")
			status := attribute.String("status", strconv.Itoa(e.Status))
			received.Add(ctx, 1, metric.WithAttributes(endpoint, attribute.String("outcome", outcome), status))
			duration.Record(ctx, e.Duration.Seconds(), metric.WithAttributes(endpoint, status))
			endRequest(ctx, e.Err, attribute.String(attrOutcome, outcome), attribute.Int(attrStatus, e.Status))
		},
		Backfilled: func(e webhook.BackfilledEvent) {
			missed.Add(context.Background(), int64(e.Missed), metric.WithAttributes(endpoint))
		},
	})
	if c.Trace == nil {
		c.Trace = traceOf
	}
	return nil
}
