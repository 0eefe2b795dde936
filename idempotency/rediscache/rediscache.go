// Package rediscache is an idempotency.Cache on Redis, or on anything that speaks its protocol (Valkey, KeyDB, managed services). It is a
// package of its own, so that nothing of go-redis is linked where it is not wanted.
//
//	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
//	cache, err := rediscache.New(client, "payments-api:")
//
// # What it does with Redis
//
// A record's entry is a string under the prefix and the record's id in hexadecimal, with a time to live (GETRANGE, SET with PX, DEL: any
// version, cluster or not). Nothing is ever asked of Redis that has to be true: no lock, no claim, no counter. It may lose everything, be
// flushed, be restored from an old copy, evict what it wants (maxmemory-policy allkeys-lru suits it), or be written to by others: entries are
// encrypted and authenticated by the server's side of package idempotency, which also bounds how old one may be.
//
// # The client's timeouts
//
// Set ContextTimeoutEnabled in the client's options. Without it go-redis goes by ReadTimeout, 3 s, when it waits for an
// answer, whatever the context says: the request goes on without the answer then, and a connection of the client's pool is occupied
// for longer than necessary.
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
var ErrConfig = errors.New("rediscache: bad configuration")

// maxEntry is how much of a value is read. Entries are shorter by far; what is longer is somebody else's.
const maxEntry = 8 << 20

// Cache keeps entries in Redis.
type Cache struct {
	client redis.UniversalClient
	prefix string
}

var _ idempotency.Cache = (*Cache)(nil)

// New returns a Cache. The prefix keeps its entries apart from whatever else is in that Redis, and those of one service from another's: it must
// not be empty. The client stays the caller's, who closes it.
func New(client redis.UniversalClient, prefix string) (*Cache, error) {
	var faults []error
	if client == nil {
		faults = append(faults, fmt.Errorf("%w: client: must not be nil", ErrConfig))
	}
	if prefix == "" || len(prefix) > 255 {
		faults = append(faults, fmt.Errorf("%w: prefix: has %d bytes, must have 1 to 255", ErrConfig, len(prefix)))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return &Cache{client: client, prefix: prefix}, nil
}

func (c *Cache) key(id [16]byte) string { return c.prefix + hex.EncodeToString(id[:]) }

// Get returns the entry of a record, or nil.
func (c *Cache) Get(ctx context.Context, id [16]byte) ([]byte, error) {
	// GETRANGE and not GET: a value of 512 MB under our name would be read into memory. A missing key is an empty string to it.
	entry, err := c.client.GetRange(ctx, c.key(id), 0, maxEntry-1).Bytes()
	switch {
	case errors.Is(err, redis.Nil), redis.HasErrorPrefix(err, "WRONGTYPE"): // a list, say: nothing of ours, and no failure of Redis
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("rediscache: %w", err)
	case len(entry) == 0:
		return nil, nil
	}
	return entry, nil
}

// Put keeps an entry for at most ttl, which Redis knows in whole milliseconds.
func (c *Cache) Put(ctx context.Context, id [16]byte, entry []byte, ttl time.Duration) error {
	if ttl = ttl.Truncate(time.Millisecond); ttl <= 0 {
		return c.Delete(ctx, id) // to Redis, 0 is for ever
	}
	if err := c.client.Set(ctx, c.key(id), entry, ttl).Err(); err != nil {
		return fmt.Errorf("rediscache: %w", err)
	}
	return nil
}

// Delete removes an entry, whatever type it is of.
func (c *Cache) Delete(ctx context.Context, id [16]byte) error {
	if err := c.client.Del(ctx, c.key(id)).Err(); err != nil {
		return fmt.Errorf("rediscache: %w", err)
	}
	return nil
}
