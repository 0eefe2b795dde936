package telemetry_test

import (
	"context"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/telemetry"
)

// Spans and metrics go to OpenTelemetry's global providers, which the program's SDK has set.
func Example() {
	work := consumer.Config{Scope: "stock", Key: consumer.HeaderKey("message-id")}
	calls := outbox.RelayConfig{} // with its sinks
	if err := telemetry.Instrument(&work, telemetry.Config{Messages: true}); err != nil {
		log.Fatal(err)
	}
	if err := telemetry.Instrument(&calls, telemetry.Config{}); err != nil {
		log.Fatal(err)
	}
	// Then consumer.New(pool, source, handler, work) and outbox.NewRelay(pool, calls).
}

// Each process observes; one of them asks the database at a time.
func ExampleObserve() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := telemetry.Observe(ctx, pool, telemetry.Config{Interval: 30 * time.Second}); err != nil {
		log.Fatal(err)
	}
}

// In a handler, a record that is logged with the handler's context names its trace.
func ExampleLogHandler() {
	logger := slog.New(telemetry.LogHandler(slog.NewJSONHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})))
	logger.InfoContext(context.Background(), "outside of a span")
	// Output: {"level":"INFO","msg":"outside of a span"}
}
