package sqlsuite

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Consume applies messages with a consumer until it has passed all of them, those that it tries
// again included. Each value is also the message's id. It returns the reason for which each parked
// message is parked, by value, and the errors.
func Consume(t *testing.T, pool *pgxpool.Pool, handle consumer.HandlerFunc, values ...string) (reasons, errs map[string]string) {
	t.Helper()
	return consume(t, pool, values, func(src consumer.Source, cfg consumer.Config) (*consumer.Consumer, error) {
		return consumer.New(pool, src, handle, cfg)
	})
}

// ConsumeBatch is Consume for a batch handler.
func ConsumeBatch(t *testing.T, pool *pgxpool.Pool, handle consumer.BatchHandlerFunc, values ...string) (reasons, errs map[string]string) {
	t.Helper()
	return consume(t, pool, values, func(src consumer.Source, cfg consumer.Config) (*consumer.Consumer, error) {
		return consumer.New(pool, src, handle, cfg)
	})
}

func consume(
	t *testing.T,
	pool *pgxpool.Pool,
	values []string,
	build func(consumer.Source, consumer.Config) (*consumer.Consumer, error),
) (reasons, errs map[string]string) {
	t.Helper()
	log := memlog.NewLog("orders", 1)
	for _, v := range values {
		log.Append(0, v, consumer.Header{Name: "message-id", Value: []byte(v)})
	}
	c, err := build(&memlog.Source{Log: log, GroupID: "stock"}, consumer.Config{
		Scope: "stock", Key: consumer.HeaderKey("message-id"), BatchSize: 10, Linger: time.Millisecond,
		MaxAttempts: 2, Backoff: dedupe.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, c, int64(len(values)))
	rows, err := pool.Query(t.Context(), `select convert_from(body, 'utf8'), reason, error from onlyonce.parked`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	reasons = map[string]string{}
	errs = map[string]string{}
	for rows.Next() {
		var value, reason, text string
		if err := rows.Scan(&value, &reason, &text); err != nil {
			t.Fatal(err)
		}
		reasons[value], errs[value] = reason, text
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return reasons, errs
}

// run runs a consumer of one partition until it has passed an offset.
func run(t *testing.T, c *consumer.Consumer, offset int64) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	pgtest.Until(t, patience, fmt.Sprintf("offset %d", offset), func() bool {
		all, err := c.Status(ctx)
		return err == nil && len(all) > 0 && all[0].Position == offset && all[0].ToRetry+all[0].Blocked == 0
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
