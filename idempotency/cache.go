package idempotency

import (
	"context"
	"time"
)

// Cache keeps copies of completed records, so that the layer answers a frequently repeated request
// without a query (H21). It never decides whether a request runs. If it loses an entry, fails or is
// slow, the layer queries the database. Entries are sealed and bound to their record, and the layer
// checks each one as if an attacker had written it.
//
// Implementations must be safe for concurrent use. They should return when their context ends; the
// layer stops waiting for a call that does not. Package rediscache has one for Redis.
type Cache interface {
	// Get returns the entry of a record, or nil without an error if there is none.
	Get(ctx context.Context, id [16]byte) ([]byte, error)
	// Put stores an entry, in place of an older one, for at most ttl. It must not keep a reference
	// to entry.
	Put(ctx context.Context, id [16]byte, entry []byte, ttl time.Duration) error
	// Delete removes an entry. It returns nil if there is none.
	Delete(ctx context.Context, id [16]byte) error
}
