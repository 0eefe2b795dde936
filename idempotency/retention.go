package idempotency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/preflight"
)

// purgeSQL deletes a batch of expired records. abandonSQL handles requests in lease mode whose
// clients did not come back (H18). They use the indexes http_records_expired and http_records_open,
// lock only the rows that they delete, and skip locked rows.
const (
	purgeSQL   = `select onlyonce.http_purge($1)`
	abandonSQL = `select deleted, aside, abandoned from onlyonce.http_abandon($1)`
)

// Run checks the database and then purges expired records until ctx ends; then it returns nil. Any
// number of processes may run it. If no process does, the layer still answers correctly, because
// expired records count as absent (H19), but the tables grow. Run returns an error if the schema or
// the role's rights do not fit.
func (l *Layer) Run(ctx context.Context) error {
	warnings, err := preflight.Check(ctx, l.pool, preflight.HTTP)
	for _, w := range warnings {
		l.cfg.Logger.Warn("onlyonce: " + w)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // ctx ended before the check
		}
		return fmt.Errorf("idempotency: %w", err)
	}
	defer l.begun.Begin(ctx)()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		more, err := l.purge(ctx)
		if err != nil && ctx.Err() == nil {
			l.failed(err)
		}
		wait := l.cfg.PurgeInterval
		if more {
			wait = wait / 100 // a pause between batches, because requests run at the same time
		}
		timer.Reset(wait)
	}
}

// Ready is for a readiness probe. It returns nil while Run works, because it has checked the schema
// and the role's rights. Before that, and from the moment that Run's context ends, it returns an
// error. It makes no query: if the database goes away later, requests are answered 503.
func (l *Layer) Ready() error {
	if err := l.begun.Err(); err != nil {
		return fmt.Errorf("idempotency: not ready: %w", err)
	}
	return nil
}

// purge deletes a batch, and reports whether there may be more.
func (l *Layer) purge(ctx context.Context) (more bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.cfg.StatementTimeout)
	defer cancel()
	var purged, deleted, aside, abandoned int
	if err := l.pool.QueryRow(ctx, purgeSQL, l.cfg.PurgeBatch).Scan(&purged); err != nil {
		return false, fmt.Errorf("idempotency: purging: %w", err)
	}
	if err := l.pool.QueryRow(ctx, abandonSQL, l.cfg.PurgeBatch).Scan(&deleted, &aside, &abandoned); err != nil {
		return false, fmt.Errorf("idempotency: looking for abandoned requests: %w", err)
	}
	if aside > 0 {
		l.cfg.Logger.Error("onlyonce: the outcome of a step is unknown; an operator must decide: see `onlyonce request list`", "requests", aside)
	}
	if abandoned > 0 {
		l.cfg.Logger.Error("onlyonce: requests made external calls, were not completed, and their clients did not retry: see `onlyonce request list`", "requests", abandoned)
	}
	if purged+deleted > 0 && l.cfg.Hooks.Purged != nil {
		l.cfg.Hooks.Purged(purged + deleted)
	}
	return purged == l.cfg.PurgeBatch, nil
}

// eraseSQL removes an answer and the results of its steps; the row that marks the key as used
// stays. In: id. Out: one row, the number of records erased. The second part finds the steps
// through the result of the first, because a data-changing part runs even if the first one changed
// nothing, and a request that is not completed needs its steps' results.
const eraseSQL = `
with erased as (update onlyonce.http_records set response = null, erased_at = clock_timestamp()
                 where id = $1 and state = 'completed' and erased_at is null returning id),
     steps as (update onlyonce.http_steps set result = null where record_id in (select id from erased))
select count(*) from erased`

// ErrNoRecord is returned by [Erase] if there is no completed record under the key, or if it was
// erased before.
var ErrNoRecord = errors.New("idempotency: no completed record under this key")

// DB is what [Erase] runs on: *pgxpool.Pool, *pgx.Conn or pgx.Tx.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Erase removes the stored answer of a tenant's key, for example for a customer's right to erasure.
// Later copies of the request get 410 and do not run again.
//
// scope is the record's: method and pattern, for example "http POST /v1/charges". If
// Scope.Principal is set, it follows after another space, escaped by url.PathEscape. A [Cache] may
// serve the answer until Config.CacheTTL has passed; to remove it there too, use [Layer.Erase]. The
// error is [ErrNoRecord] if there is nothing to erase.
func Erase(ctx context.Context, db DB, tenant, scope, key string) error {
	id := dedupe.Key{Tenant: tenant, Scope: scope, ID: key}.Hash()
	var erased int
	if err := db.QueryRow(ctx, eraseSQL, uuid.UUID(id)).Scan(&erased); err != nil {
		return fmt.Errorf("idempotency: erasing: %w", err)
	}
	if erased == 0 {
		return ErrNoRecord
	}
	return nil
}

// Erase is the function [Erase], and removes the answer from the layer's cache too.
func (l *Layer) Erase(ctx context.Context, tenant, scope, key string) error {
	if err := Erase(ctx, l.pool, tenant, scope, key); err != nil {
		return err
	}
	if l.cache == nil {
		return nil
	}
	if err := l.cache.forget(ctx, dedupe.Key{Tenant: tenant, Scope: scope, ID: key}.Hash()); err != nil {
		return fmt.Errorf("idempotency: erased in the database, but the cache may serve the answer until Config.CacheTTL has passed: %w", err)
	}
	return nil
}

// pauses returns the waits between two looks at work that is still under way.
func pauses() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(10*time.Millisecond), backoff.WithMaxInterval(500*time.Millisecond), backoff.WithMaxElapsedTime(0))
}
