package idempotency

import (
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/onlyonce/onlyonce/internal/codec"
	"github.com/onlyonce/onlyonce/seal"
)

// A tier is what stands between the engine and a Cache (H21): it says what may be believed of one, and how long one may take.
//
// # What is believed
//
// An entry is sealed, under a name that is derived from the record's id: nobody without the key can make one, and one that is
// moved to another record, or a sealed body out of the database that is written into the cache, does not open. It says which
// history of the database its record is in: the system identifier, and the timeline on which the record was committed or read. A failover
// that loses the commit begins another timeline; the record is not there any more, the effect neither, and the entry is a
// miss. For this the tier must know the timeline of now, and how late it is. The engine tells it with each answer of the database
// (saw), and an entry is used only where the last answer was asked for less than sightingAge ago: a process that the database has
// not answered since then cannot know whether there was a failover. So each process asks the database once in a while whatever
// the cache holds, and a hit can paper over a failover for no longer than that.
//
// The timeline of an entry is that of the connection on which its record was committed, or read, and not that of the last
// sighting: a record that was committed on timeline 1 and is put after 2 was seen would else pass for one of 2. A connection that
// has written keeps its timeline for its life, since a primary changes it only by being started again.
//
// # How long
//
// An entry holds the time at which its record expires, and the time from which it counts no more, which is at most the tier's TTL
// after it was made. Both are of the database's clock. The time of now is the clock of the last sighting and what has passed, by
// the monotonic clock, since that was asked for: at or ahead of the database, so that an entry ends before the record that it is of. A
// Redis that ignores its TTL, or that is restored from a copy, revives nothing. A record that has expired may be replaced by
// another under its id (H19), and by then its entry has ended.
//
// # Erasure
//
// A record may be deleted before it expires, because somebody asks for it. Then its answer must not come out of a cache. The
// order: delete the row, COMMIT, then forget. And put is followed by a look whether the row is still there:
//
//	put before forget     forget removes the entry
//	put after forget      so the row was gone before the put, and the look behind it finds that and removes the entry
//
// The look must be for the row of that attempt (its token), because under the same id another one may have been made meanwhile,
// and must be on the primary. What remains is a process that dies between put and look, a forget that Redis does not take, and a
// put that had timed out here, lay in a paused Redis's socket, and was done after both. In all of them the entry counts for
// the rest of its TTL (5 minutes by default), for a request with the same key, scope and bytes. Who cannot bear that uses no cache.
type tier struct {
	cache   Cache
	sealer  *seal.Sealer
	ttl     time.Duration
	timeout time.Duration
	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]
	sighted atomic.Pointer[sighting]
}

// history identifies a history of a database: what was committed in it is there, unless a failover has lost it, which begins another one.
type history struct {
	System   int64  // pg_control_system
	Timeline uint32 // the first eight digits of pg_walfile_name(pg_current_wal_insert_lsn()), in hexadecimal
}

// sighting is what one answer of the database says about now.
type sighting struct {
	history
	clock time.Time // the database's, when it answered
	asked time.Time // by our monotonic clock, before it was asked
}

// cached is a completed record as the cache has it.
type cached struct {
	Origin      history   // of the connection on which it was committed or read
	Expires     time.Time // by the database's clock
	Fingerprint []byte
	Response    *response
}

const (
	// sightingAge is for how long an answer of the database says which timeline there is.
	sightingAge = time.Second
	// forgetTimeout bounds a removal, which is tried whatever state the cache is in.
	forgetTimeout = 2 * time.Second
	// tierFailures in a row open the breaker, for tierPause.
	tierFailures = 3
	tierPause    = 5 * time.Second
	// maxEntry is the longest entry that is put. Longer answers are read from the database.
	maxEntry = 2 << 20
)

var (
	errTierTimeout = errors.New("idempotency: the cache took too long")
	errTierPanic   = errors.New("idempotency: the cache panicked")
	// errTierNothing says nothing about the cache: its caller went away.
	errTierNothing = errors.New("idempotency: nothing was learned about the cache")
)

// newTier takes a Config that has been checked, and whose defaults are filled in, with a Cache.
func newTier(cfg *Config) *tier {
	return &tier{
		cache: cfg.Cache, sealer: cfg.Sealer, ttl: cfg.CacheTTL, timeout: cfg.CacheTimeout,
		breaker: gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
			MaxRequests: 1,
			Timeout:     tierPause,
			ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= tierFailures },
			IsExcluded:  func(err error) bool { return errors.Is(err, errTierNothing) },
		}),
	}
}

// saw tells of an answer of the database: what it said, and when it was asked, as time.Now() read just before. Answers are told in any
// order. Of one system a lower timeline counts for nothing: it is an old primary that has not noticed yet.
func (t *tier) saw(o history, clock, asked time.Time) {
	next := &sighting{o, clock, asked}
	for {
		last := t.sighted.Load()
		if last != nil && last.System == o.System && (o.Timeline < last.Timeline || o.Timeline == last.Timeline && !asked.After(last.asked)) {
			return
		}
		if last != nil && last.System != o.System && !asked.After(last.asked) {
			return
		}
		if t.sighted.CompareAndSwap(last, next) {
			return
		}
	}
}

// now returns the database's history and a time that its clock has not passed yet, if both are known.
func (t *tier) now() (o history, clock time.Time, ok bool) {
	s := t.sighted.Load()
	if s == nil {
		return history{}, time.Time{}, false
	}
	passed := time.Since(s.asked)
	return s.history, s.clock.Add(passed), passed >= 0 && passed < sightingAge
}

// get returns a record from the cache, or says that the database must be asked.
func (t *tier) get(ctx context.Context, id [16]byte) (*cached, bool) {
	if _, _, ok := t.now(); !ok {
		return nil, false
	}
	var sealed []byte
	err := t.try(ctx, func(ctx context.Context) (err error) {
		got, err := t.cache.Get(ctx, id)
		sealed = got
		return err
	})
	if err != nil || sealed == nil {
		return nil, false
	}
	entry, err := t.sealer.Open(entryName(id), sealed)
	if err != nil {
		return nil, false // garbage, or of a key that is gone
	}
	c, until, ok := decodeEntry(entry)
	if !ok {
		return nil, false
	}
	// Now, and not before the cache was asked: it may have taken its time, and a failover have been seen meanwhile.
	o, clock, ok := t.now()
	if !ok || c.Origin != o || !clock.Before(until) || !clock.Before(c.Expires) {
		return nil, false
	}
	return c, true
}

// put keeps a completed record, after its COMMIT. Then still is asked whether the row of this very attempt is there; if it is not, or if
// nobody knows, the entry is removed again. It may run behind the answer; its errors are nobody's business.
func (t *tier) put(ctx context.Context, id [16]byte, c *cached, still func(context.Context) (bool, error)) {
	o, clock, ok := t.now()
	if !ok || c.Origin != o {
		return // nobody would believe it
	}
	ttl := min(t.ttl, c.Expires.Sub(clock))
	if ttl < time.Millisecond {
		return
	}
	sealed, err := t.sealer.Seal(entryName(id), c.encode(clock.Add(ttl)))
	if err != nil || len(sealed) > maxEntry {
		return
	}
	err = t.try(ctx, func(ctx context.Context) error { return t.cache.Put(ctx, id, sealed, ttl) })
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		return // nothing was put
	}
	// Whatever the answer was: a put that failed here may have been done there.
	if there, err := still(ctx); err != nil || !there {
		_ = t.forget(context.WithoutCancel(ctx), id)
	}
}

// forget removes a record's entry, after the COMMIT that deleted its row. It is tried whatever state the cache is in. An error means that
// the answer may be given for the rest of the TTL.
func (t *tier) forget(ctx context.Context, id [16]byte) error {
	return bounded(ctx, forgetTimeout, func(ctx context.Context) error { return t.cache.Delete(ctx, id) })
}

// try makes one operation, unless the cache has failed so often that it is left alone.
func (t *tier) try(ctx context.Context, op func(context.Context) error) error {
	done, err := t.breaker.Allow()
	if err != nil {
		return err
	}
	err = bounded(ctx, t.timeout, op)
	if err != nil && ctx.Err() != nil {
		done(errTierNothing)
	} else {
		done(err)
	}
	return err
}

// bounded waits for an operation no longer than that, even if it does not look at its context: go-redis does so only where it is told to.
// What it returns later, nobody reads.
func bounded(ctx context.Context, timeout time.Duration, op func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTierTimeout)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		defer func() {
			if v := recover(); v != nil {
				ended <- errTierPanic
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

// entryName is what an entry is sealed under: another place than the answer's in its row.
func entryName(id [16]byte) [16]byte { return codec.SealPlace(id, sealedEntry, "") }

// An entry, before it is sealed; numbers are big-endian, times in microseconds:
//
//	1 byte    version, 1
//	8 bytes   system identifier
//	4 bytes   timeline
//	8 bytes   when the record expires
//	8 bytes   when the entry does
//	4 bytes   length of the fingerprint, and the fingerprint
//	          the answer, as in its row
const (
	entryVersion = 1
	entryHead    = 1 + 8 + 4 + 8 + 8 + 4
)

func (c *cached) encode(until time.Time) []byte {
	b := append(make([]byte, 0, entryHead+len(c.Fingerprint)+len(c.Response.Body)+512), entryVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(c.Origin.System))
	b = binary.BigEndian.AppendUint32(b, c.Origin.Timeline)
	b = binary.BigEndian.AppendUint64(b, uint64(c.Expires.UnixMicro()))
	b = binary.BigEndian.AppendUint64(b, uint64(until.UnixMicro()))
	b = binary.BigEndian.AppendUint32(b, uint32(len(c.Fingerprint)))
	b = append(b, c.Fingerprint...)
	return append(b, c.Response.encode()...)
}

func decodeEntry(b []byte) (c *cached, until time.Time, ok bool) {
	if len(b) < entryHead || b[0] != entryVersion {
		return nil, time.Time{}, false
	}
	c = &cached{
		Origin:  history{int64(binary.BigEndian.Uint64(b[1:])), binary.BigEndian.Uint32(b[9:])},
		Expires: time.UnixMicro(int64(binary.BigEndian.Uint64(b[13:]))),
	}
	until = time.UnixMicro(int64(binary.BigEndian.Uint64(b[21:])))
	n := int64(binary.BigEndian.Uint32(b[29:]))
	if n > int64(len(b)-entryHead) {
		return nil, time.Time{}, false
	}
	c.Fingerprint = b[entryHead : entryHead+n : entryHead+n]
	var err error
	if c.Response, err = decodeResponse(b[entryHead+n:]); err != nil {
		return nil, time.Time{}, false
	}
	return c, until, true
}
