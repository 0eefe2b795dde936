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

// purgeSQL deletes records that have expired, a batch at most; abandonSQL sees to requests in lease mode that no client came back for (H18). By the
// indexes http_records_expired and http_records_open; locks only what it deletes, and leaves out what is locked.
const (
	purgeSQL   = `select onlyonce.http_purge($1)`
	abandonSQL = `select deleted, aside, abandoned from onlyonce.http_abandon($1)`
)

// Run checks the database, and then purges what has expired until ctx ends; then it returns nil. It may run in any number of processes. Without it
// nothing goes wrong: what has expired counts as absent (H19). An error means that the schema or the role's rights do not fit.
func (l *Layer) Run(ctx context.Context) error {
	warnings, err := preflight.Check(ctx, l.pool, preflight.HTTP)
	for _, w := range warnings {
		l.cfg.Logger.Warn("onlyonce: " + w)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopped before it began
		}
		return fmt.Errorf("idempotency: %w", err)
	}
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
			wait = wait / 100 // beside traffic: not one batch right behind the other
		}
		timer.Reset(wait)
	}
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
		return false, fmt.Errorf("idempotency: looking for requests that no client came back for: %w", err)
	}
	if aside > 0 {
		l.cfg.Logger.Error("onlyonce: requests with a step of unknown outcome wait for an operator: see `onlyonce request list`", "requests", aside)
	}
	if abandoned > 0 {
		l.cfg.Logger.Error("onlyonce: requests whose steps had their effect were not completed, and no client came back: see `onlyonce request list`", "requests", abandoned)
	}
	if purged+deleted > 0 && l.cfg.Hooks.Purged != nil {
		l.cfg.Hooks.Purged(purged + deleted)
	}
	return purged == l.cfg.PurgeBatch, nil
}

// eraseSQL forgets an answer and the results of its steps, and keeps that the key was used. In: id. Out: one row, how many records that were. The steps
// are found through what the first part has changed: a part that changes data runs whatever the others find, and a request that is not completed
// needs the results of its steps.
const eraseSQL = `
with erased as (update onlyonce.http_records set response = null, erased_at = clock_timestamp()
                 where id = $1 and state = 'completed' and erased_at is null returning id),
     steps as (update onlyonce.http_steps set result = null where record_id in (select id from erased))
select count(*) from erased`

// ErrNoRecord says that nothing that could be erased is kept under a key.
var ErrNoRecord = errors.New("idempotency: no completed record under this key")

// DB is what [Erase] needs: *pgxpool.Pool, *pgx.Conn and pgx.Tx have it.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Erase forgets the answer that is stored for a tenant's key, for whoever has the right to be forgotten: later copies of the request get
// 410, and do not run again. scope is the record's: "http POST /v1/charges", and the principal, URL-escaped, behind another space.
// A [Cache] may serve the answer until Config.CacheTTL has passed.
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

// Erase is [Erase], and forgets the answer in the layer's cache too.
func (l *Layer) Erase(ctx context.Context, tenant, scope, key string) error {
	if err := Erase(ctx, l.pool, tenant, scope, key); err != nil {
		return err
	}
	if l.cache == nil {
		return nil
	}
	if err := l.cache.forget(ctx, dedupe.Key{Tenant: tenant, Scope: scope, ID: key}.Hash()); err != nil {
		return fmt.Errorf("idempotency: erased, but the cache may still answer for Config.CacheTTL: %w", err)
	}
	return nil
}

// pauses is the schedule of looks at something that is under way.
func pauses() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(10*time.Millisecond), backoff.WithMaxInterval(500*time.Millisecond), backoff.WithMaxElapsedTime(0))
}
