package idempotency

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/codec"
)

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
	if err := db.QueryRow(ctx, eraseSQL, codec.UUID(id)).Scan(&erased); err != nil {
		return fmt.Errorf("idempotency: erasing: %w", err)
	}
	if erased == 0 {
		return ErrNoRecord
	}
	return nil
}

// Erase is the function [Erase], and removes the answer from the layer's cache too.
func (l *Layer) Erase(ctx context.Context, tenant, scope, key string) error {
	l, err := l.ofTenant(ctx, tenant)
	if err != nil {
		return err
	}
	if err := Erase(ctx, l.pool, tenant, scope, key); err != nil {
		return err
	}
	if l.cache == nil {
		return nil
	}
	if err := l.cache.remove(ctx, dedupe.Key{Tenant: tenant, Scope: scope, ID: key}.Hash()); err != nil {
		return fmt.Errorf("idempotency: erased in the database, but the cache may serve the answer until Config.CacheTTL has passed: %w", err)
	}
	return nil
}
