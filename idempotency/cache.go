package idempotency

import (
	"context"
	"time"
)

// Cache is an optional tier in front of the database, for completed records only (H21): a request that is repeated often is
// answered from it without a query. It decides nothing. What it has lost, refuses or takes too long for costs a query, and no more; what it
// returns is sealed, bound to its record and judged as if anybody had written it.
//
// Its methods may be called from several goroutines at once. They should return when their context ends; a call that does not
// is left behind. Package rediscache has one for Redis.
type Cache interface {
	// Get returns the entry of a record, or nil and no error where there is none.
	Get(ctx context.Context, id [16]byte) ([]byte, error)
	// Put keeps an entry for at most that long, in the place of one that is there. It must not keep entry itself.
	Put(ctx context.Context, id [16]byte, entry []byte, ttl time.Duration) error
	// Delete removes an entry, if there is one.
	Delete(ctx context.Context, id [16]byte) error
}
