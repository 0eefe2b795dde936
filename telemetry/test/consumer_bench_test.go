package telemetry_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/consumer/source"
	"github.com/onlyonce/onlyonce/telemetry"
)

// BenchmarkConsumer is what telemetry adds to a transaction of 100 messages, each of a trace of its
// own: allocations of the whole transaction, and the process's CPU time for each message, in which
// the garbage collector's is counted and other programs' is not.
func BenchmarkConsumer(b *testing.B) {
	for _, messages := range []bool{false, true} {
		b.Run(fmt.Sprintf("Messages=%v", messages), func(b *testing.B) {
			spans := trace.NewTracerProvider(trace.WithBatcher(discarded{}))
			meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
			b.Cleanup(func() { _ = spans.Shutdown(context.Background()) })
			cfg := consumer.Config{Scope: "bench"}
			if err := telemetry.Instrument(&cfg, telemetry.Config{
				TracerProvider: spans,
				MeterProvider:  meters,
				Messages:       messages,
			}); err != nil {
				b.Fatal(err)
			}
			var batch []*consumer.Message
			for i := range 100 {
				parent := fmt.Sprintf("00-4bf92f3577b34da6a3ce929d0e0e%04x-00f067aa0ba9%04x-01", i, i)
				batch = append(batch, &consumer.Message{
					Topic:   "orders",
					Offset:  int64(i),
					Time:    time.Now(),
					Headers: []consumer.Header{{Name: "traceparent", Value: []byte(parent)}},
				})
			}
			b.ReportAllocs()
			began := used(b)
			for b.Loop() {
				ctx := cfg.Hooks.AttemptStart(context.Background(), consumer.Batch{
					TopicPartition: source.TopicPartition{Topic: "orders"},
					Messages:       len(batch),
				})
				ctx = cfg.Hooks.HandleBatchStart(ctx, batch)
				for _, m := range batch {
					if cfg.Hooks.HandleStart == nil {
						break
					}
					within := cfg.Hooks.HandleStart(ctx, m)
					if cfg.Hooks.HandleEnd != nil {
						cfg.Hooks.HandleEnd(within, m, nil)
					}
				}
				cfg.Hooks.AttemptEnd(
					ctx,
					consumer.BatchResult{
						Batch:   consumer.Batch{TopicPartition: source.TopicPartition{Topic: "orders"}, Messages: len(batch)},
						Handled: len(batch),
					},
					nil,
				)
			}
			b.ReportMetric(float64(used(b)-began)/float64(b.N*len(batch)), "cpu-ns/message")
		})
	}
}

// used returns the CPU time of this process, in nanoseconds.
func used(b *testing.B) int64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return r.Utime.Nano() + r.Stime.Nano()
}

type discarded struct{}

func (discarded) ExportSpans(context.Context, []trace.ReadOnlySpan) error { return nil }
func (discarded) Shutdown(context.Context) error                          { return nil }
