package idempotency

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/onlyonce/onlyonce/seal"
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

// responseCache is the part of the layer that talks to a [Cache] (H21): it decides which entries
// are believed and how long the cache may take.
//
// # Which entries are believed
//
// An entry is sealed under a name that is derived from the record's id. An attacker without the key
// cannot make one, and an entry that is moved to another record does not open; nor does a sealed
// body that is copied from the database into the cache.
//
// An entry holds the history of the database that its record is in: the system identifier, and the
// timeline on which the record was committed or read. A failover that loses the commit begins
// another timeline: the record and its effects are gone, and the entry must not be used. So the
// layer must know the current timeline, and how old that knowledge is. Each answer of the database
// brings it (observe), and an entry is used only if the latest answer was requested less than
// sightingAge ago. A process without such an answer cannot know whether there was a failover. So
// each process queries the database regularly however many entries the cache holds, and a hit can
// hide a failover for no longer than sightingAge.
//
// The timeline of an entry is that of the connection that committed or read its record, not that of
// the latest sighting. Otherwise a record that was committed on timeline 1, and put after timeline
// 2 was seen, would pass for one of timeline 2. A connection that has written keeps its timeline
// for life, because a primary changes it only by a restart.
//
// # How long they are used
//
// An entry holds two times: when its record expires, and when the entry itself does, which is at
// most the cache's TTL after it was made. Both are by the database's clock. The current time is the
// clock of the latest sighting plus the time that has passed, by the monotonic clock, since that
// was requested. This is never earlier than the database's clock, so that an entry ends before its
// record. So if Redis ignores a TTL or is restored from a copy, no old entry comes back to life.
// After a record has expired, its id may get another record (H19), and by then the entry has ended
// too.
//
// # Erasure
//
// If a record is erased before it expires, the cache must not serve its answer. The order is:
// delete the row, COMMIT, then remove the entry. And each put is followed by a check that the row
// is still there:
//
//	put before remove     remove removes the entry
//	put after remove      the row was gone before the put, and the check after the put removes the entry
//
// The check looks for the row of the same attempt (its token), because the id may have got another
// row in the meantime. It must run on the primary.
//
// Three cases remain: a process that dies between put and check; a remove that Redis does not
// execute; and a put that timed out here, waited in a paused Redis's socket, and was executed after
// both. In each of them the entry is served for the rest of its TTL (5 minutes by default), to a
// request with the same key, scope and bytes. If that is not acceptable, use no cache.
type responseCache struct {
	cache   Cache
	sealer  *seal.Sealer
	ttl     time.Duration
	timeout time.Duration
	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]
	latest  atomic.Pointer[sighting]
}

// sighting is what one answer of the database says about its history and clock.
type sighting struct {
	databaseHistory
	clock time.Time // the database's clock when it answered
	asked time.Time // by the process's monotonic clock, before the query was sent
}

const (
	// sightingAge is how long an answer of the database proves which timeline is current.
	sightingAge = time.Second
	// removeTimeout bounds a removal, which is tried even if the breaker is open.
	removeTimeout = 2 * time.Second
	// breakerFailures in a row open the breaker for breakerPause.
	breakerFailures = 3
	breakerPause    = 5 * time.Second
	// maxEntry is the most bytes of an entry. Longer answers are always read from the database.
	maxEntry = 2 << 20
)

var (
	errCacheTimeout = errors.New("idempotency: the cache did not answer in time")
	errCachePanic   = errors.New("idempotency: the cache panicked")
	// errCacheCallerGone is not counted by the breaker: the caller went away before the cache
	// answered.
	errCacheCallerGone = errors.New("idempotency: the caller left before the cache answered")
)

// newResponseCache takes a checked Config with its defaults filled in, and with a Cache.
func newResponseCache(cfg *Config) *responseCache {
	return &responseCache{
		cache: cfg.Cache, sealer: cfg.Sealer, ttl: cfg.CacheTTL, timeout: cfg.CacheTimeout,
		breaker: gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
			MaxRequests: 1,
			Timeout:     breakerPause,
			ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= breakerFailures },
			IsExcluded:  func(err error) bool { return errors.Is(err, errCacheCallerGone) },
		}),
	}
}

// observe records an answer of the database: its history and clock, and time.Now() from just before
// the query. Answers may arrive in any order. A lower timeline of the same system is ignored: it
// comes from an old primary that has not noticed its replacement yet.
func (rc *responseCache) observe(o databaseHistory, clock, asked time.Time) {
	next := &sighting{o, clock, asked}
	for {
		last := rc.latest.Load()
		if last != nil && !last.before(next) {
			return
		}
		if rc.latest.CompareAndSwap(last, next) {
			return
		}
	}
}

// before reports whether another sighting replaces this one: it has a later timeline of the same
// system, or was asked later.
func (s *sighting) before(other *sighting) bool {
	if s.System == other.System && s.Timeline != other.Timeline {
		return s.Timeline < other.Timeline
	}
	return other.asked.After(s.asked)
}

// currentHistory returns the database's history, and a time that is not before the database's
// clock. ok is false if they are not known.
func (rc *responseCache) currentHistory() (o databaseHistory, clock time.Time, ok bool) {
	s := rc.latest.Load()
	if s == nil {
		return databaseHistory{}, time.Time{}, false
	}
	passed := time.Since(s.asked)
	return s.databaseHistory, s.clock.Add(passed), passed >= 0 && passed < sightingAge
}

// get returns a record from the cache. If it returns false, the caller must ask the database.
func (rc *responseCache) get(ctx context.Context, id [16]byte) (*cacheEntry, bool) {
	if _, _, ok := rc.currentHistory(); !ok {
		return nil, false
	}
	var sealed []byte
	err := rc.withBreaker(ctx, func(ctx context.Context) (err error) {
		got, err := rc.cache.Get(ctx, id)
		sealed = got
		return err
	})
	if err != nil || sealed == nil {
		return nil, false
	}
	entry, err := rc.sealer.Open(entryName(id), sealed)
	if err != nil {
		return nil, false // garbage, or sealed with a key that is gone
	}
	c, until, ok := decodeEntry(entry)
	if !ok {
		return nil, false
	}
	// Read the clock after the cache has answered: it may have been slow, and a failover seen
	// meanwhile.
	o, clock, ok := rc.currentHistory()
	if !ok || c.Origin != o {
		return nil, false
	}
	if !clock.Before(until) || !clock.Before(c.Expires) {
		return nil, false
	}
	return c, true
}

// put stores a completed record after its COMMIT, and then checks with isStillThere that the row of
// the same attempt is there. If it is not, or if the check fails, put removes the entry again. It
// may run after the request was answered; its errors are dropped, because a missing entry costs
// only a query.
func (rc *responseCache) put(
	ctx context.Context,
	id [16]byte,
	c *cacheEntry,
	isStillThere func(context.Context) (bool, error),
) {
	o, clock, ok := rc.currentHistory()
	if !ok || c.Origin != o {
		return // get would refuse it
	}
	ttl := min(rc.ttl, c.Expires.Sub(clock))
	if ttl < time.Millisecond {
		return
	}
	sealed, err := rc.sealer.Seal(entryName(id), c.encode(clock.Add(ttl)))
	if err != nil || len(sealed) > maxEntry {
		return
	}
	err = rc.withBreaker(ctx, func(ctx context.Context) error { return rc.cache.Put(ctx, id, sealed, ttl) })
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		return // nothing was put
	}
	// Check even after an error: a put that timed out here may have been executed there.
	if there, err := isStillThere(ctx); err != nil || !there {
		_ = rc.remove(context.WithoutCancel(ctx), id)
	}
}

// remove removes a record's entry, after the COMMIT that deleted its row. It is tried even if the
// breaker is open. If it returns an error, the cache may serve the answer for the rest of the TTL.
func (rc *responseCache) remove(ctx context.Context, id [16]byte) error {
	return callWithin(ctx, removeTimeout, func(ctx context.Context) error { return rc.cache.Delete(ctx, id) })
}

// withBreaker runs one operation, unless the cache has failed so often that the breaker is open.
func (rc *responseCache) withBreaker(ctx context.Context, op func(context.Context) error) error {
	done, err := rc.breaker.Allow()
	if err != nil {
		return err
	}
	err = callWithin(ctx, rc.timeout, op)
	if err != nil && ctx.Err() != nil {
		done(errCacheCallerGone)
	} else {
		done(err)
	}
	return err
}

// callWithin waits for an operation until timeout, even if the operation ignores its context:
// go-redis does unless ContextTimeoutEnabled is set. What the operation returns later is dropped.
func callWithin(ctx context.Context, timeout time.Duration, op func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errCacheTimeout)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		defer func() {
			if v := recover(); v != nil {
				ended <- errCachePanic
			}
		}()
		ended <- op(ctx)
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
