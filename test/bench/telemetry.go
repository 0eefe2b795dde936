package main

import (
	"context"
	"fmt"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/telemetry"
)

// discarded is an exporter of spans that does nothing with them: what a real one takes is its own.
type discarded struct{}

func (discarded) ExportSpans(context.Context, []trace.ReadOnlySpan) error { return nil }
func (discarded) Shutdown(context.Context) error                          { return nil }

// observed compares a consumer with telemetry with one without. Every transaction is sampled, and
// each message has a trace of its own. messages asks for a span for each message too.
func observed(messages bool) func(context.Context, *server, options) (side, side, error) {
	return func(ctx context.Context, srv *server, o options) (wrapped, plain side, err error) {
		const connections, batch = 4, 100
		trial, err := runSide(ctx, srv, plainSide(connections, batch, applyPipelined), trialWindow())
		if err != nil {
			return nil, nil, err
		}
		t := newTape(connections, int(3*trial.rate()*(o.window+settle).Seconds())/connections+4*fetchLimit, orderedID)
		for n := range 4096 {
			t.traceparents = append(t.traceparents, fmt.Appendf(nil, "00-4bf92f3577b34da6a3ce929d0e0e%04x-00f067aa0ba9%04x-01", n, n))
		}
		cfg := consumer.Config{Scope: "bench", BatchSize: batch, Key: consumer.HeaderKey(idHeader)}
		plain = wrappedSide(t, handlerQueued, cfg)
		return func(ctx context.Context, db *database, w *window) (sample, error) {
			spans := trace.NewTracerProvider(trace.WithBatcher(discarded{}))
			meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
			defer func() {
				_ = spans.Shutdown(context.WithoutCancel(ctx))
				_ = meters.Shutdown(context.WithoutCancel(ctx))
			}()
			seen := cfg
			if err := telemetry.Instrument(&seen, telemetry.Config{
				TracerProvider: spans,
				MeterProvider:  meters,
				Messages:       messages,
			}); err != nil {
				return sample{}, err
			}
			return wrappedSide(t, handlerQueued, seen)(ctx, db, w)
		}, plain, nil
	}
}

// clientRise is the CPU time of a message with telemetry in relation to that without. Telemetry
// sends the server nothing, so what the server takes is that of the plain side in both: between two
// windows of one and the same side it differs by more than telemetry costs.
func clientRise(wrapped, plain sample) (float64, bool) {
	per := func(s sample) float64 { return s.used.client.Seconds() * 1e6 / float64(s.messages) }
	return 1 + (per(wrapped)-per(plain))/plain.cpu(), wrapped.used.seen && plain.used.seen
}
