package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onlyonce/onlyonce/internal/ring"
)

// expiryKeys is how many keys P9 forgets.
const expiryKeys = 1_000_000

// usualSQL is the usual table for keys: with a time, and an index by it, so that old ones are
// found. Half of the rows are old.
const usualSQL = `
create table usual (key uuid primary key, fingerprint bigint not null, created_at timestamptz not null);
insert into usual
  select gen_random_uuid(), 0, now() - case when g <= %[1]d then interval '8 days'
                                            else interval '1 day' end - g * interval '10 milliseconds'
    from generate_series(1, 2 * %[1]d) g;
create index on usual (created_at);
analyze usual`

// expiry compares a rotator's way to forget a million keys with DELETE and VACUUM.
func expiry(context.Context, *server, options) (wrapped, plain side, err error) {
	return expireRing, expireTable, nil
}

func spent(ctx context.Context, db *database, do func() error) (sample, error) {
	if err := db.srv.exec(ctx, "checkpoint"); err != nil {
		return sample{}, err
	}
	before, err := db.srv.usage(ctx)
	if err != nil {
		return sample{}, err
	}
	began := time.Now()
	if err := do(); err != nil {
		return sample{}, err
	}
	took := time.Since(began)
	after, err := db.srv.usage(ctx)
	return sample{messages: expiryKeys, elapsed: took, used: after.minus(before)}, err
}

// expireRing measures from the rotator's first step until the segment is emptied and its filter is
// deleted.
func expireRing(ctx context.Context, db *database, _ *window) (got sample, err error) {
	if _, err := db.open(ctx, 2); err != nil {
		return sample{}, err
	}
	k := &keyStore{database: db}
	if err := k.loadRing(ctx, 1, expiryKeys); err != nil {
		return sample{}, err
	}
	if err := k.exec(ctx, `
update onlyonce.segments
   set closed_at = closed_at - interval '8 days', opened_at = opened_at - interval '8 days'
 where ring = 'consumer_keys' and slot = 1`); err != nil {
		return sample{}, err
	}
	var before, emptied usage
	got, err = spent(ctx, db, func() error {
		if before, err = db.srv.usage(ctx); err != nil {
			return err
		}
		for {
			out, err := k.rotator.Step(ctx)
			if err != nil {
				return err
			}
			if out.Action == ring.Truncated {
				break
			}
		}
		if emptied, err = db.srv.usage(ctx); err != nil {
			return err
		}
		_, err := k.builder.Step(ctx)
		return err
	})
	got.disk = float64(emptied.wal-before.wal) / expiryKeys // before the filter is deleted
	return got, errors.Join(err, k.rotator.Release(ctx))
}

func expireTable(ctx context.Context, db *database, _ *window) (sample, error) {
	if _, err := db.open(ctx, 1); err != nil {
		return sample{}, err
	}
	k := &keyStore{database: db}
	if err := k.exec(ctx, fmt.Sprintf(usualSQL, expiryKeys)); err != nil {
		return sample{}, err
	}
	return spent(ctx, db, func() error {
		return k.exec(ctx, `delete from usual where created_at < now() - interval '7 days'`, `vacuum usual`)
	})
}

// duration is how long the wrapped side takes, relative to the plain one.
func duration(wrapped, plain sample) (float64, bool) {
	return wrapped.elapsed.Seconds() / plain.elapsed.Seconds(), true
}

// walEach is the wrapped side's WAL for each key.
func walEach(wrapped, _ sample) (float64, bool) {
	return float64(wrapped.used.wal) / float64(wrapped.messages), true
}
