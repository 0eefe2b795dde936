package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/shard"
)

// ofPlace compares a loop of one's own for places with the same without: a claim and
// an effect in a transaction. The places are 100 tenants.
func ofPlace(context.Context, *server, options) (wrapped, plain side, err error) {
	return senderSide(false, loopOfPlace), senderSide(false, loopAnywhere), nil
}

// loopOfPlace asks in each transaction whether the place lives here.
func loopOfPlace(_ context.Context, pool *pgxpool.Pool) (sender, func(), error) {
	shards, err := shard.New(shard.Config{Pools: map[string]*pgxpool.Pool{"one": pool}, OfPlace: func(string) string { return "one" }})
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, key string, body []byte) error {
		place := fmt.Sprintf("tenant-%d", body[0]%100)
		db, err := shards.Find(ctx, place)
		if err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error {
			if err := shard.Enter(ctx, tx, place); err != nil {
				return err
			}
			return claimAndApply(ctx, tx, key, body)
		})
	}, func() {}, nil
}

func loopAnywhere(_ context.Context, pool *pgxpool.Pool) (sender, func(), error) {
	return func(ctx context.Context, key string, body []byte) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return claimAndApply(ctx, tx, key, body) })
	}, func() {}, nil
}

// claimAndApply claims a key that is new, and writes an effect.
func claimAndApply(ctx context.Context, tx pgx.Tx, key string, body []byte) error {
	outcome, err := dedupe.Claim(ctx, tx, dedupe.Key{Scope: "bench", ID: key, Fingerprint: dedupe.NoFingerprint})
	if err != nil {
		return err
	}
	if outcome != dedupe.Fresh {
		return fmt.Errorf("key %s, which is new, is a %v", key, outcome)
	}
	_, err = tx.Exec(ctx, effectSQL, int64(len(body)), body)
	return err
}
