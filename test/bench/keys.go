package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// P8's sizes: the number of random keys that are kept, by default and in the long form. The ring
// that holds almost none has smallShare of that.
const (
	keptShort   = 5_000_000
	keptLong    = 50_000_000
	smallShare  = 50
	keysShort   = 10 * time.Second
	keysLong    = time.Minute
	claimers    = 4
	claimBatch  = 100
	bigSegments = 7 // slots 1 to 7; 0, 8 and 9 are for what is rotated meanwhile
)

// loadSegmentSQL fills a table of keys with random ones, and then builds its index with the pages
// as full as random inserts leave them. It has placeholders for the table's name, twice for the
// index's, and for the number of keys.
const loadSegmentSQL = `
alter table onlyonce_segments.%[1]s drop constraint if exists %[1]s_pkey;
insert into onlyonce_segments.%[1]s (key, fingerprint) select gen_random_uuid(), 0 from generate_series(1, %[2]d);
create unique index %[1]s_pkey on onlyonce_segments.%[1]s (key) with (fillfactor = 70);
alter index onlyonce_segments.%[1]s_pkey set (fillfactor = 90);
alter table onlyonce_segments.%[1]s add constraint %[1]s_pkey primary key using index %[1]s_pkey`

// oneTableSQL makes one table for all keys, for comparison.
const oneTableSQL = `create table onlyonce_segments.one_table (key uuid primary key, fingerprint bigint not null)`

// keyStores are the databases of P8, which are loaded once for all rounds.
type keyStores struct{ made map[string]*keyStore }

// keyStore is a database with keys.
type keyStore struct {
	*database
	filters *inbox.Filters // nil: one table
	builder *inbox.Builder
	rotator *ring.Rotator
}

func (s *keyStores) get(ctx context.Context, srv *server, keys int, oneTable bool) (*keyStore, error) {
	name := fmt.Sprint(keys, oneTable)
	if k := s.made[name]; k != nil {
		return k, nil
	}
	began := time.Now()
	db, err := srv.fresh(ctx)
	if err != nil {
		return nil, err
	}
	srv.atEnd(func() { _ = db.drop() })
	if _, err := db.open(ctx, claimers+3); err != nil {
		return nil, err
	}
	k := &keyStore{database: db}
	if oneTable {
		err = k.loadTable(ctx, keys)
	} else {
		err = k.loadRing(ctx, bigSegments, keys)
	}
	if err != nil {
		return nil, err
	}
	if s.made == nil {
		s.made = map[string]*keyStore{}
	}
	s.made[name] = k
	srv.log(fmt.Sprintf("%d keys were loaded in %v (one table: %v)", keys, time.Since(began).Round(time.Second), oneTable))
	return k, nil
}

func (k *keyStore) exec(ctx context.Context, statements ...string) error {
	for _, sql := range statements {
		if _, err := k.pool.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

func (k *keyStore) loadTable(ctx context.Context, keys int) error {
	return k.exec(ctx, oneTableSQL, fmt.Sprintf(loadSegmentSQL, "one_table", keys), "vacuum analyze onlyonce_segments.one_table")
}

// loadRing makes closed segments with their filters, and loads these.
func (k *keyStore) loadRing(ctx context.Context, segments, keys int) error {
	for slot := 1; slot <= segments; slot++ {
		table := fmt.Sprintf("consumer_keys_%d", slot)
		if err := k.exec(ctx, fmt.Sprintf(loadSegmentSQL, table, keys/segments), "vacuum analyze onlyonce_segments."+table); err != nil {
			return err
		}
	}
	err := k.exec(ctx, fmt.Sprintf(`update onlyonce.rings r set closed = array(select s from generate_series(%[1]d, 1, -1) s),
      uses = array(select case when s between 1 and %[1]d then s end::bigint from generate_series(0, 9) s order by s)
                                     where r.name = 'consumer_keys'`, segments),
		fmt.Sprintf(
			`update onlyonce.segments set closed_at = clock_timestamp(), opened_at = clock_timestamp() - interval '1 day', use_no = 1
	     where ring = 'consumer_keys' and slot between 1 and %d`,
			segments,
		))
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	k.filters, k.builder = inbox.NewFilters(k.pool, "consumer_keys", log), inbox.NewBuilder(k.pool, ring.ConsumerKeys(), log)
	if err := k.build(ctx, segments); err != nil {
		return err
	}
	// A segment is due if it holds anything: its age does not count here.
	k.rotator, err = ring.New(k.pool, ring.ConsumerKeys(), ring.Config{MaxBytes: 1})
	return err
}

// build builds missing filters until there are n, and loads them.
func (k *keyStore) build(ctx context.Context, filters int) error {
	for {
		if _, err := k.builder.Step(ctx); err != nil {
			return err
		}
		if err := k.filters.Load(ctx); err != nil {
			return err
		}
		if _, n := k.filters.Bytes(); n >= filters {
			return nil
		}
		if err := pauseFor(ctx, rotatePause); err != nil {
			return err
		}
	}
}

// rotatePause is the pause of these measurements' rotator between two checks: a thousandth of the
// pause in a process.
const rotatePause = 10 * time.Millisecond

func pauseFor(ctx context.Context, d time.Duration) error { return until(ctx, time.Now().Add(d)) }

// reach runs steps until one has the given result.
func (k *keyStore) reach(ctx context.Context, want ring.Action) error {
	for {
		out, err := k.rotator.Step(ctx)
		if err != nil {
			return err
		}
		if out.Action == want {
			return nil
		}
		if err := pauseFor(ctx, rotatePause); err != nil {
			return err
		}
	}
}

// rotate makes one round. Another segment is announced, and the one before is closed; its filter is
// built and loaded. Then that segment, and not a large one, is made the oldest and past its
// horizon, and is retired and emptied.
func (k *keyStore) rotate(ctx context.Context) error {
	if err := k.reach(ctx, ring.Announced); err != nil {
		return err
	}
	if err := k.reach(ctx, ring.Closed); err != nil {
		return err
	}
	if err := k.build(ctx, bigSegments+1); err != nil {
		return err
	}
	err := k.exec(ctx, `update onlyonce.segments s
                           set closed_at = s.closed_at - interval '8 days', opened_at = s.opened_at - interval '8 days'
                          from onlyonce.rings r
    where r.name = 'consumer_keys' and s.ring = r.name and s.slot = r.closed[1]`,
		`update onlyonce.rings set closed = closed[2:] || closed[1] where name = 'consumer_keys'`)
	if err != nil {
		return err
	}
	// Claims in the meantime make the next announcement due, which would come first.
	x, err := ring.New(k.pool, ring.ConsumerKeys(), ring.Config{MaxBytes: math.MaxInt64})
	if err != nil {
		return err
	}
	if err := k.rotator.Release(ctx); err != nil {
		return err
	}
	small := k.rotator
	k.rotator = x
	err = k.reach(ctx, ring.Truncated)
	k.rotator = small
	if err := errors.Join(err, x.Release(ctx)); err != nil {
		return err
	}
	return k.filters.Load(ctx)
}

// claimWork claims random keys and writes their effects until it is stopped, a hundred in a
// transaction in one round trip. It works as consumers do: the filters are checked first, and the
// claim raises an error unless all keys are fresh.
type claimWork struct {
	k       *keyStore
	count   atomic.Int64
	stopped atomic.Bool
	failed  chan error
	workers sync.WaitGroup
	done    func() // called after each commit; nil: nothing
}

const (
	claimFreshSQL = `
select onlyonce.claim_consumer_fresh(
  keys => $1,
  fingerprints => $2,
  asked => $3,
  hit_uses => $4,
  hits => $5
)`
	claimTableSQL = `insert into onlyonce.one_table (key, fingerprint) select unnest($1::uuid[]), unnest($2::bigint[]) order by 1`
	setEffectsSQL = `insert into effects (account, payload) select unnest($1::bigint[]), unnest($2::bytea[])`
)

func (c *claimWork) start(ctx context.Context) {
	c.failed = make(chan error, claimers)
	for n := range claimers {
		c.workers.Go(func() {
			seed := [32]byte{byte(n)}
			binary.BigEndian.PutUint64(seed[1:], uint64(time.Now().UnixNano())) // keys are new in each round
			r := rand.NewChaCha8(seed)
			bodies := newBodies(r)[:claimBatch]
			for !c.stopped.Load() {
				if err := c.one(ctx, r, bodies); err != nil {
					c.failed <- err
					return
				}
				c.count.Add(claimBatch)
				if c.done != nil {
					c.done()
				}
			}
		})
	}
}

func (c *claimWork) stop() {
	c.stopped.Store(true)
	c.workers.Wait()
}

func (c *claimWork) one(ctx context.Context, r *rand.ChaCha8, bodies [][]byte) error {
	keys := make([]uuid.UUID, claimBatch)
	raw := make([][16]byte, claimBatch)
	prints := make([]int64, claimBatch)
	for i := range keys {
		keys[i] = randomID(r, 0)
		raw[i], prints[i] = keys[i], 7
	}
	b := &pgx.Batch{}
	b.Queue("begin")
	if c.k.filters == nil {
		b.Queue(claimTableSQL, keys, prints)
	} else {
		asked, uses, hits := c.k.filters.Ask(raw)
		possible := make([]uuid.UUID, len(hits))
		for i, h := range hits {
			possible[i] = h
		}
		b.Queue(claimFreshSQL, keys, prints, append([]int64{}, asked...), append([]int64{}, uses...), possible)
	}
	b.Queue(setEffectsSQL, prints, bodies)
	b.Queue("commit")
	return c.k.pool.SendBatch(ctx, b).Close()
}

// kept is how many keys P8 keeps.
func (o options) kept() int {
	switch {
	case o.keep > 0:
		return o.keep
	case o.long:
		return keptLong
	}
	return keptShort
}

// keptAgainst compares a ring that keeps all keys with one that keeps few, or with one table.
func (s *keyStores) keptAgainst(oneTable bool) func(context.Context, *server, options) (wrapped, plain side, err error) {
	return func(ctx context.Context, srv *server, o options) (wrapped, plain side, err error) {
		many, err := s.get(ctx, srv, o.kept(), false)
		if err != nil {
			return nil, nil, err
		}
		n := o.kept()
		if !oneTable {
			n /= smallShare
		}
		other, err := s.get(ctx, srv, n, oneTable)
		if err != nil {
			return nil, nil, err
		}
		return many.claiming(o), other.claiming(o), nil
	}
}

// claiming claims keys after a checkpoint. In the middle it makes another checkpoint, and there one
// rotation, from the announcement to the TRUNCATE.
func (k *keyStore) claiming(o options) side {
	return func(ctx context.Context, _ *database, w *window) (sample, error) {
		w.length = keysShort
		if o.long {
			w.length = keysLong
		}
		if err := k.srv.exec(ctx, "checkpoint"); err != nil {
			return sample{}, err
		}
		work := &claimWork{k: k}
		work.start(ctx)
		turned := make(chan error, 1)
		go func() {
			err := pauseFor(ctx, settle+w.length/3)
			if err == nil {
				_, err = k.pool.Exec(ctx, "checkpoint")
			}
			if err == nil && k.filters != nil {
				err = k.rotate(ctx)
			}
			turned <- err
		}()
		got, err := w.watch(ctx, k.database, work.count.Load, nil, work.failed)
		over := len(turned) > 0
		work.stop()
		if err := errors.Join(err, <-turned); err != nil {
			return got, err
		}
		if !over {
			return got, fmt.Errorf("the checkpoint and the rotation were not over in %v: this machine is too busy", w.length)
		}
		return got, nil
	}
}

// walShare is how much WAL a key takes on the wrapped side, relative to the plain one.
func walShare(wrapped, plain sample) (float64, bool) {
	return float64(wrapped.used.wal) / float64(wrapped.messages) / (float64(plain.used.wal) / float64(plain.messages)), true
}
