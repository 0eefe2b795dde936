// Package rediscache is an idempotency.Cache on Redis, or on any server with its protocol, for
// example Valkey, KeyDB or a managed service. It is a module of its own, so that programs without
// it do not depend on go-redis.
//
//	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
//	cache, err := rediscache.New(client, "payments-api:")
//
// # Use of Redis
//
// An entry is a string with a time to live, under the prefix and the record's id in hexadecimal.
// The commands are GETRANGE, SET with PX, and DEL: any version works, with or without a cluster.
//
// Correctness does not depend on Redis: it holds no lock, no claim and no counter. It may lose all
// data, be flushed, be restored from an old copy, evict entries (maxmemory-policy allkeys-lru is a
// good choice), or be written to by others. Package idempotency encrypts and authenticates the
// entries, and bounds their age.
//
// # The client's timeouts
//
// Set ContextTimeoutEnabled in the client's options. Without it, go-redis ignores the context while
// it waits for an answer, and waits for ReadTimeout, 3 s by default. The request continues without
// the answer, but a connection of the client's pool stays busy for longer than necessary.
package rediscache

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onlyonce/onlyonce/idempotency"
)

// ErrConfig is wrapped by every error of New.
var ErrConfig = errors.New("rediscache: invalid configuration")

// maxEntry bounds how many bytes of a value are read. Entries are far shorter; a longer value is
// not one.
const maxEntry = 8 << 20

// Cache keeps entries in Redis. It is safe for concurrent use.
type Cache struct {
	client redis.UniversalClient
	prefix string
}

var _ idempotency.Cache = (*Cache)(nil)

// New returns a Cache. The prefix separates its entries from other data in the same Redis, for
// example from those of another service: 1 to 255 bytes. The caller keeps the client and closes it.
// If an argument is wrong, the error lists every fault and wraps [ErrConfig].
func New(client redis.UniversalClient, prefix string) (*Cache, error) {
	var faults []error
	if client == nil {
		faults = append(faults, fmt.Errorf("%w: client: must not be nil", ErrConfig))
	}
	if prefix == "" || len(prefix) > 255 {
		faults = append(faults, fmt.Errorf("%w: prefix: has %d bytes: must have 1 to 255", ErrConfig, len(prefix)))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return &Cache{client: client, prefix: prefix}, nil
}

func (c *Cache) key(id [16]byte) string { return c.prefix + hex.EncodeToString(id[:]) }

// Get returns the entry of a record, or nil if there is none.
func (c *Cache) Get(ctx context.Context, id [16]byte) ([]byte, error) {
	// GETRANGE and not GET, because a foreign value of 512 MB under this name would be read into
	// memory. For a missing key it returns an empty string.
	entry, err := c.client.GetRange(ctx, c.key(id), 0, maxEntry-1).Bytes()
	switch {
	case errors.Is(err, redis.Nil), redis.HasErrorPrefix(err, "WRONGTYPE"):
		// for example a list: not an entry, and not a failure of Redis
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("rediscache: %w", err)
	case len(entry) == 0:
		return nil, nil
	}
	return entry, nil
}

// Put stores an entry for at most ttl, rounded down to whole milliseconds.
func (c *Cache) Put(ctx context.Context, id [16]byte, entry []byte, ttl time.Duration) error {
	if ttl = ttl.Truncate(time.Millisecond); ttl <= 0 {
		return c.Delete(ctx, id) // a ttl of 0 means no limit to Redis
	}
	if err := c.client.Set(ctx, c.key(id), entry, ttl).Err(); err != nil {
		return fmt.Errorf("rediscache: %w", err)
	}
	return nil
}

// Delete removes an entry, even if its value has another type.
func (c *Cache) Delete(ctx context.Context, id [16]byte) error {
	if err := c.client.Del(ctx, c.key(id)).Err(); err != nil {
		return fmt.Errorf("rediscache: %w", err)
	}
	return nil
}
