package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/idempotency"
	"github.com/onlyonce/onlyonce/seal"
)

// done compares idempotency.Do with the same function without it: in a transaction of its own, or,
// with replays, as a select of the stored result.
func done(replays bool) func(context.Context, *server, options) (wrapped, plain side, err error) {
	return func(context.Context, *server, options) (side, side, error) {
		if replays {
			return senderSide(true, doCall), requestSide(selectService, true, false), nil
		}
		return senderSide(false, doCall), senderSide(false, bareCall), nil
	}
}

// doCall calls a function under a key.
func doCall(_ context.Context, pool *pgxpool.Pool) (sender, func(), error) {
	layer, err := idempotency.New(pool, idempotency.Config{Scope: idempotency.GlobalScope(),
		FingerprintKeys: seal.Keys{Current: 1, ByID: map[uint32]seal.Key{1: {1}}}})
	if err != nil {
		return nil, nil, err
	}
	doer, err := idempotency.NewDoer(layer, idempotency.DoerConfig{Scope: "charge", NoCalls: true})
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, key string, body []byte) error {
		got, _, err := idempotency.Do(ctx, doer, idempotency.Scope{}, key, body, func(ctx context.Context, tx consumer.Tx) (string, error) {
			_, err := tx.Exec(ctx, effectSQL, int64(len(body)), body)
			return string(receipt(1, body)), err
		})
		if err == nil && len(got) < 100 {
			err = fmt.Errorf("a result of %d bytes", len(got))
		}
		return err
	}, func() {}, nil
}

// bareCall does the same in a transaction of its own.
func bareCall(_ context.Context, pool *pgxpool.Pool) (sender, func(), error) {
	return func(ctx context.Context, _ string, body []byte) error {
		return applyWaiting(ctx, pool, int64(len(body)), [][]byte{body})
	}, func() {}, nil
}
