package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/ring"
)

// sim simulates months in which keys are remembered for a horizon: by a ring, and by one table from
// which old rows are deleted every day. It moves time in the database, one slice after another. A
// slice is a 30th of a horizon's seventh, so that segments have realistic ages.
type sim struct {
	days, horizon int // how long it goes on, and how long keys are remembered
	keys          int // a day
	scale         float64
}

const (
	slicesOfSegment = 30
	segmentsOfRing  = 7
	simBatch        = 1000
)

const (
	moveSQL = `
update onlyonce.segments
   set opened_at = opened_at - make_interval(secs => $1), closed_at = closed_at - make_interval(secs => $1)
 where ring = 'consumer_keys'`
	simClaimSQL = `
select onlyonce.claim_consumer_fresh(
  keys => $1,
  fingerprints => $2,
  asked => $3,
  hit_uses => $4,
  hits => $5
)`
	simTableSQL  = `create table usual (key uuid primary key, fingerprint bigint not null, created_at timestamptz not null)`
	simIndexSQL  = `create index on usual (created_at)`
	simInsertSQL = `insert into usual select unnest($1::uuid[]), unnest($2::bigint[]), $3 order by 1`
	simDeleteSQL = `delete from usual where created_at < $1`
	ringSizeSQL  = `
select coalesce(sum(pg_relation_size(c.oid)), 0)::bigint,
       coalesce(sum(pg_indexes_size(c.oid)), 0)::bigint,
       (select pg_total_relation_size('onlyonce.filters')),
       (select coalesce(sum(octet_length(filter)), 0)::bigint from onlyonce.filters)
  from pg_class c
 where c.relnamespace = 'onlyonce_segments'::regnamespace and c.relname like 'consumer\_keys\__' and c.relkind = 'r'`
	usualSizeSQL = `select pg_relation_size('usual'), pg_indexes_size('usual')`
	ringKeysSQL  = `select count(*) from (select key from onlyonce.inbox where segment like 'consumer_keys%') k`
)

// cost is what one kind of work took in all.
type cost struct {
	times int
	took  time.Duration
	wal   int64
}

func (c *cost) add(ctx context.Context, srv *server, do func() error) error {
	before, err := srv.usage(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := do(); err != nil {
		return err
	}
	c.took += time.Since(began)
	after, err := srv.usage(ctx)
	c.wal += after.wal - before.wal
	c.times++
	return err
}

// sizes are what keys take at the moment of the peak.
type sizes struct {
	keys                         int64
	heap, index, stored, filters int64 // filters: the bytes that are kept in memory; stored: with what TOAST makes of them
}

func (s sizes) each(bytes int64) float64 { return float64(bytes) / float64(s.keys) }

// ring simulates the ring.
func (x sim) ring(ctx context.Context, db *database) (most sizes, claims, rotation cost, segments int, filterKeys int64, err error) {
	pool, err := db.open(ctx, 3)
	if err != nil {
		return
	}
	if _, err = pool.Exec(ctx, `update onlyonce.rings set horizon = make_interval(days => $1) where name = 'consumer_keys'`,
		x.horizon); err != nil {
		return
	}
	log := slog.New(slog.DiscardHandler)
	builder, filters := inbox.NewBuilder(pool, ring.ConsumerKeys(), log), inbox.NewFilters(pool, "consumer_keys", log)
	rotator, err := ring.New(pool, ring.ConsumerKeys(), ring.Config{
		MaxBytes: math.MaxInt64,
		Hooks: ring.Hooks{Stepped: func(o ring.StepResult) {
			if o.Action == ring.Closed {
				segments++
			}
		}},
	})
	if err != nil {
		return
	}
	defer func() { _ = rotator.Release(context.WithoutCancel(ctx)) }()
	claim := func(keys []uuid.UUID, prints []int64) error {
		raw := make([][16]byte, len(keys))
		for i, k := range keys {
			raw[i] = k
		}
		asked, uses, hits := filters.Ask(raw)
		possible := make([]uuid.UUID, len(hits))
		for i, h := range hits {
			possible[i] = h
		}
		_, err := pool.Exec(ctx, simClaimSQL, keys, prints, append([]int64{}, asked...), append([]int64{}, uses...), possible)
		return err
	}
	rotate := func() error {
		for {
			out, err := rotator.Step(ctx)
			if err != nil {
				return err
			}
			if out.Action == ring.Idle || out.Action == ring.Needed {
				break
			}
		}
		for missing := true; missing; {
			if _, err := builder.Step(ctx); err != nil {
				return err
			}
			err := pool.QueryRow(ctx, `
select cardinality(closed) > (select count(*) from onlyonce.filters where ring = 'consumer_keys')
  from onlyonce.rings where name = 'consumer_keys'`).Scan(&missing)
			if err != nil {
				return err
			}
		}
		return filters.Load(ctx)
	}
	err = x.slices(func(_ int, keys []uuid.UUID, prints []int64) error {
		return claims.add(ctx, db.srv, func() error { return inChunks(keys, prints, claim) })
	}, func(int) error {
		if _, err := pool.Exec(ctx, moveSQL, x.slice().Seconds()); err != nil {
			return err
		}
		// The peak is right before segments are emptied.
		var now sizes
		if err := pool.QueryRow(ctx, ringSizeSQL).Scan(&now.heap, &now.index, &now.stored, &now.filters); err != nil {
			return err
		}
		if now.heap > most.heap {
			if err := pool.QueryRow(ctx, ringKeysSQL).Scan(&now.keys); err != nil {
				return err
			}
			most = now
			if err := pool.QueryRow(ctx, `select coalesce(sum(keys), 0)::bigint from onlyonce.filters`).Scan(&filterKeys); err != nil {
				return err
			}
		}
		return rotation.add(ctx, db.srv, rotate)
	})
	return
}

// table simulates one table with the time of each row, and an index by it; every day what is too
// old is deleted, and the table vacuumed.
func (x sim) table(ctx context.Context, db *database) (most sizes, claims, expiry cost, err error) {
	pool, err := db.open(ctx, 1)
	if err != nil {
		return
	}
	for _, sql := range []string{simTableSQL, simIndexSQL} {
		if _, err = pool.Exec(ctx, sql); err != nil {
			return
		}
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	lastDay := 0
	kept := int64(0)
	err = x.slices(func(_ int, keys []uuid.UUID, prints []int64) error {
		kept += int64(len(keys))
		return claims.add(ctx, db.srv, func() error {
			return inChunks(keys, prints, func(keys []uuid.UUID, prints []int64) error {
				_, err := pool.Exec(ctx, simInsertSQL, keys, prints, now)
				return err
			})
		})
	}, func(n int) error {
		now = now.Add(x.slice())
		if day := int(time.Duration(n+1) * x.slice() / (24 * time.Hour)); day > lastDay {
			lastDay = day
			var s sizes
			if err := pool.QueryRow(ctx, usualSizeSQL).Scan(&s.heap, &s.index); err != nil {
				return err
			}
			s.keys = kept
			if s.heap+s.index > most.heap+most.index {
				most = s
			}
			if day > x.horizon {
				return expiry.add(ctx, db.srv, func() error { return x.expire(ctx, pool, now, &kept) })
			}
		}
		return nil
	})
	return
}

func (x sim) expire(ctx context.Context, pool *pgxpool.Pool, now time.Time, kept *int64) error {
	tag, err := pool.Exec(ctx, simDeleteSQL, now.AddDate(0, 0, -x.horizon))
	if err != nil {
		return err
	}
	*kept -= tag.RowsAffected()
	_, err = pool.Exec(ctx, `vacuum usual`)
	return err
}

func (x sim) slice() time.Duration {
	return time.Duration(x.horizon) * 24 * time.Hour / (segmentsOfRing * slicesOfSegment)
}

// slices has keys claimed and time moved, a slice at a time.
func (x sim) slices(claim func(n int, keys []uuid.UUID, prints []int64) error, move func(n int) error) error {
	r := rand.NewChaCha8([32]byte{3})
	each := int(float64(x.keys) * x.slice().Hours() / 24)
	for n := range int(time.Duration(x.days) * 24 * time.Hour / x.slice()) {
		keys, prints := make([]uuid.UUID, each), make([]int64, each)
		for i := range keys {
			keys[i] = randomID(r, 0)
		}
		if err := claim(n, keys, prints); err != nil {
			return err
		}
		if err := move(n); err != nil {
			return err
		}
	}
	return nil
}

func inChunks(keys []uuid.UUID, prints []int64, do func([]uuid.UUID, []int64) error) error {
	for len(keys) > 0 {
		n := min(simBatch, len(keys))
		if err := do(keys[:n], prints[:n]); err != nil {
			return err
		}
		keys, prints = keys[n:], prints[n:]
	}
	return nil
}

// simulate runs both and says what they took, and what that is for x.scale keys a day.
func (x sim) simulate(ctx context.Context, srv *server, out io.Writer) error {
	say := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	var rung, tabled sizes
	var claims, rotation, inserts, expired cost
	var segments int
	var filterKeys int64
	for _, part := range []func(*database) error{
		func(db *database) (err error) {
			rung, claims, rotation, segments, filterKeys, err = x.ring(ctx, db)
			return err
		},
		func(db *database) (err error) { tabled, inserts, expired, err = x.table(ctx, db); return err },
	} {
		db, err := srv.fresh(ctx)
		if err != nil {
			return err
		}
		if err := part(db); err != nil {
			_ = db.drop()
			return err
		}
		if err := db.drop(); err != nil {
			return err
		}
	}
	if filterKeys == 0 || expired.times == 0 || segments < segmentsOfRing {
		return fmt.Errorf("nothing was forgotten in %d days with a horizon of %d: -days must be more", x.days, x.horizon)
	}
	claimed := float64(x.keys) * float64(x.days)
	forgotten := float64(x.keys) * float64(expired.times)
	say("%d days, %d random keys a day, remembered for %d days; PostgreSQL %s", x.days, x.keys, x.horizon, srv.version)
	say(
		"ring:  %d keys at most (of %.1f days); heap %.1f and index %.1f bytes a key; filters %.2f bytes a "+
			"key of a closed segment in memory, %.2f in the database",
		rung.keys,
		float64(rung.keys)/float64(x.keys),
		rung.each(rung.heap),
		rung.each(rung.index),
		float64(rung.filters)/float64(filterKeys),
		float64(rung.stored)/float64(filterKeys),
	)
	say(
		"       claims %.0f a second, %.0f B of WAL a key; rotation with filters %v for each of %d "+
			"segments, %.2f B of WAL and %.2f us a key claimed",
		claimed/claims.took.Seconds(),
		float64(claims.wal)/claimed,
		(rotation.took / time.Duration(segments)).Round(time.Millisecond),
		segments,
		float64(rotation.wal)/claimed,
		rotation.took.Seconds()*1e6/claimed,
	)
	say("table: %d keys at most; heap %.1f and indexes %.1f bytes a key", tabled.keys, tabled.each(tabled.heap), tabled.each(tabled.index))
	say(
		"       inserts %.0f a second, %.0f B of WAL a key; DELETE and VACUUM %v each of %d days, %.0f B of "+
			"WAL and %.2f us a key forgotten",
		claimed/inserts.took.Seconds(),
		float64(inserts.wal)/claimed,
		(expired.took / time.Duration(expired.times)).Round(time.Millisecond),
		expired.times,
		float64(expired.wal)/forgotten,
		expired.took.Seconds()*1e6/forgotten,
	)
	up := x.scale / float64(x.keys)
	gb := func(bytes float64) float64 { return bytes * up / 1e9 }
	say("for %.3g keys a day:", x.scale)
	say("ring:  %.3g keys, %.1f GB of disk, and %.2f GB of filters in each consumer and in the database",
		float64(rung.keys)*up, gb(float64(rung.heap+rung.index)), gb(float64(rung.filters)))
	say("table: %.3g keys, %.1f GB of disk; with a record of 1 KB, as usual (not measured) %.0f GB",
		float64(tabled.keys)*up, gb(float64(tabled.heap+tabled.index)), gb(float64(tabled.keys)*1024))
	return nil
}
