package main

import (
	"context"
	"errors"
	"strconv"

	"github.com/onlyonce/onlyonce/consumer"
)

// sideBySide compares a consumer that runs several transactions of a partition at once with one
// that runs one. Both have the same messages, without ordering keys, in batches of 100.
type sideBySide struct {
	partitions int
	atOnce     int
	rate       int // messages a second that no side exceeds, for the length of the tape
	handler    consumer.HandlerFunc
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

// poisoned compares a consumer one of whose thousand ordering keys has a message that always fails
// with one that has none. The failing key's messages are set aside; the others count.
func poisoned(_ context.Context, _ *server, o options) (wrapped, plain side, err error) {
	t := newTape(1, int(60_000*(o.window+settle).Seconds())+4*fetchLimit, orderedID)
	cfg := consumer.Config{
		Scope: "bench", BatchSize: 100, Key: consumer.HeaderKey(idHeader), Concurrency: 4, OnFailure: consumer.ParkOrderingKey,
		OrderingKey: func(m *consumer.Message) []byte { return strconv.AppendInt(nil, m.Offset%1000, 10) },
	}
	failing := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		if m.Offset == 7 {
			return errPoison
		}
		return handlerWaiting(ctx, tx, m)
	}
	return wrappedSide(t, failing, cfg), wrappedSide(t, handlerWaiting, cfg), nil
}

var errPoison = errors.New("this message always fails")
