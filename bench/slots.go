package main

import (
	"context"

	"github.com/onlyonce/onlyonce/consumer"
)

// sideBySide compares a consumer that runs several transactions of a partition at once with one
// that runs one. Both have the same messages, without ordering keys, in batches of 100.
type sideBySide struct {
	partitions int
	atOnce     int
	rate       int // messages a second that no side exceeds, for the length of the tape
	handler    consumer.Handler
}

// handlerSleeping waits for a millisecond in the server, once for each message.
func handlerSleeping(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
	if _, err := tx.Exec(ctx, `select pg_sleep(0.001)`); err != nil {
		return err
	}
	return handlerQueued(ctx, tx, m)
}

func (k sideBySide) open(_ context.Context, _ *server, o options) (wrapped, plain side, err error) {
	perPartition := int(float64(k.rate)*(o.window+settle).Seconds())/k.partitions + 4*fetchLimit
	t := newTape(k.partitions, perPartition, orderedID)
	cfg := consumer.Config{Scope: "bench", BatchSize: 100, Key: consumer.HeaderKey(idHeader)}
	many := cfg
	many.Concurrency = k.atOnce
	return wrappedSide(t, k.handler, many), wrappedSide(t, k.handler, cfg), nil
}
