package idempotency

import (
	"context"
	"errors"
	"fmt"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/internal/guard"
)

// eraseSQL erases a request. In: id. Out: one row, how many answers and operations were erased. See
// the function's comment.
const eraseSQL = `select onlyonce.http_erase($1)`

var (
	// ErrNoRecord is returned by [Layer.Erase] if the key has no completed record and no operation,
	// or if they were erased before.
	ErrNoRecord = errors.New("idempotency: no completed record under this key")
	// ErrOperationRuns is returned by [Layer.Erase] if the request's operation has not ended: it
	// needs its input. Nothing was erased.
	ErrOperationRuns = errors.New("idempotency: the request's operation has not ended")
)

const objectInUse = "55006"

// Erase removes the stored answer of a tenant's key, for example for a customer's right to erasure,
// from the database and the layer's cache. Later copies of the request get 410 and do not run
// again. If the request began an operation, Erase also removes the operation's result and input,
// even if the record has expired by then. The input is in the event log, so the layer's pool needs
// the rights of onlyonce_operator to erase such a request. While the operation runs, the error is
// [ErrOperationRuns].
//
// scope is the record's: method and pattern, for example "http POST /v1/charges". If
// Scope.Principal is set, it follows after another space, escaped by url.PathEscape. The error is
// [ErrNoRecord] if there is nothing to erase.
func (l *Layer) Erase(ctx context.Context, tenant, scope, key string) error {
	l, err := l.ofTenant(ctx, tenant)
	if err != nil {
		return err
	}
	id := dedupe.Key{Tenant: tenant, Scope: scope, ID: key}.Hash()
	var erased int
	if err := l.pool.QueryRow(ctx, eraseSQL, codec.UUID(id)).Scan(&erased); err != nil {
		if guard.SQLState(err) == objectInUse {
			return fmt.Errorf("%w: %w", ErrOperationRuns, err)
		}
		return fmt.Errorf("idempotency: erasing: %w", err)
	}
	if erased == 0 {
		return ErrNoRecord
	}
	if l.cache == nil {
		return nil
	}
	if err := l.cache.remove(ctx, id); err != nil {
		return fmt.Errorf("idempotency: erased in the database, but the cache may serve the answer until "+
			"Config.CacheTTL has passed: %w", err)
	}
	return nil
}
