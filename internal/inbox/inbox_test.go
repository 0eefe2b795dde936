package inbox_test

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// patience bounds what tests wait for; nothing is judged by how long it took.
var patience = pgtest.Patience(time.Minute)

type rig struct {
	t       *testing.T
	pool    *pgxpool.Pool
	rotator *ring.Rotator
	builder *inbox.Builder
	filters *inbox.Filters
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, pool: pgtest.DB(t)}
	r.exec(`update onlyonce.rings set horizon = '1 hour' where name = 'consumer_keys'`)
	log := slog.New(slog.DiscardHandler)
	var err error
	if r.rotator, err = ring.New(r.pool, ring.ConsumerKeys(), ring.Config{MaxBytes: 1}); err != nil {
		t.Fatal(err)
	}
	r.builder, r.filters = inbox.NewBuilder(r.pool, ring.ConsumerKeys(), log), inbox.NewFilters(r.pool, "consumer_keys", log)
	return r
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	pgtest.Exec(r.t, r.pool, sql, args...)
}

func one[T any](r *rig, sql string, args ...any) T {
	r.t.Helper()
	return pgtest.One[T](r.t, r.pool, sql, args...)
}

// until calls what does not wait, until it has come to something.
func (r *rig) until(what string, done func() bool) {
	r.t.Helper()
	pgtest.Until(r.t, patience, what, done)
}

// closes closes the current segment.
func (r *rig) closes() {
	r.t.Helper()
	r.until("a segment is closed", func() bool {
		out, err := r.rotator.Step(r.t.Context())
		if err != nil {
			r.t.Fatal(err)
		}
		return out.Action == ring.Closed
	})
}

// builds builds a filter and loads it.
func (r *rig) builds() {
	r.t.Helper()
	r.until("a filter is built", func() bool {
		n, err := r.builder.Step(r.t.Context())
		if err != nil {
			r.t.Fatal(err)
		}
		return n > 0
	})
	r.loads(false)
}

func (r *rig) loads(fails bool) {
	r.t.Helper()
	if err := r.filters.Load(r.t.Context()); (err != nil) != fails {
		r.t.Fatalf("loading: %v", err)
	}
}

func (r *rig) segments() int {
	_, n := r.filters.Bytes()
	return n
}

// claim claims as a consumer does.
func (r *rig) claim(keys ...uuid.UUID) []int16 {
	r.t.Helper()
	raw := make([][16]byte, len(keys))
	for i, k := range keys {
		raw[i] = k
	}
	asked, uses, hits := r.filters.Ask(raw)
	return r.claimWith(asked, uses, hits, keys...)
}

func (r *rig) claimWith(asked, uses []int64, hits [][16]byte, keys ...uuid.UUID) (outcomes []int16) {
	r.t.Helper()
	err := r.pool.QueryRow(r.t.Context(), `select onlyonce.claim_consumer($1, $2, $3, $4, $5)`,
		keys, make([]int64, len(keys)), orEmpty(asked), orEmpty(uses), orEmpty(hits)).Scan(&outcomes)
	if err != nil {
		r.t.Fatal(err)
	}
	return outcomes
}

func orEmpty[T any](s []T) []T { return append([]T{}, s...) }

// K5: a key of a closed segment is a duplicate before its filter is there, with it, and if the
// filter could not be read. If a filter excludes a key, the segment is not searched for it.
func TestK5FiltersOfClosedSegments(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var keys []uuid.UUID
	for range 100 {
		keys = append(keys, uuid.New())
	}
	all := func(want int16) {
		t.Helper()
		for i, o := range r.claim(keys...) {
			if o != want {
				t.Fatalf("key %d came to %d", i, o)
			}
		}
	}
	all(0)
	all(1)
	r.closes()
	all(1)
	r.builds()
	if r.segments() != 1 {
		t.Fatalf("%d filters are loaded", r.segments())
	}
	all(1)
	asked, uses, hits := r.filters.Ask([][16]byte{keys[0], uuid.New()})
	good := len(asked) == 1 && len(uses) == 1 && len(hits) == 1 && hits[0] == keys[0]
	if !good {
		t.Fatalf("%v, %v, %v", asked, uses, hits)
	}
	if got := r.claim(uuid.New(), keys[1], uuid.New()); !slices.Equal(got, []int16{0, 1, 0}) {
		t.Fatalf("%v", got)
	}
	// Damaged in the database: a process that starts now asks by SQL.
	r.exec(`update onlyonce.filters set filter = set_byte(filter, 40, get_byte(filter, 40) # 255)`)
	r.filters = inbox.NewFilters(r.pool, "consumer_keys", slog.New(slog.DiscardHandler))
	r.loads(true)
	if r.segments() != 0 {
		t.Fatal("a damaged filter was loaded")
	}
	all(1)
}

// K5: a large segment's filter has several parts. It is asked when all are there, whichever
// builders made them.
func TestK5FilterOfParts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	keys := make([]uuid.UUID, 2000)
	raw := make([][16]byte, len(keys))
	for i := range keys {
		keys[i] = uuid.New()
		raw[i] = keys[i]
	}
	r.claim(keys...)
	r.closes()
	r.builder.Divide(300)
	r.builds()
	parts := one[int](r, `select count(*) from onlyonce.filters`)
	if asked, _, hits := r.filters.Ask(raw); parts < 5 || len(asked) != 1 || len(hits) != len(keys) {
		t.Fatalf("%d parts, asked %v, %d of %d keys may be there", parts, asked, len(hits), len(keys))
	}
	// Its builder was stopped in between. The next one, which would divide it differently, builds
	// the rest.
	r.exec(`delete from onlyonce.filters where part in (1, 3)`)
	r.filters = inbox.NewFilters(r.pool, "consumer_keys", slog.New(slog.DiscardHandler))
	r.loads(false)
	if r.segments() != 0 {
		t.Fatal("a filter of which parts are missing is asked")
	}
	if got := r.claim(keys[:3]...); !slices.Equal(got, []int16{1, 1, 1}) {
		t.Fatalf("%v", got)
	}
	r.builder.Divide(1)
	r.builds()
	if asked, _, hits := r.filters.Ask(raw); len(asked) != 1 ||
		len(hits) != len(keys) ||
		one[int](r, `select count(*) from onlyonce.filters`) != parts {
		t.Fatalf("asked %v, %d of %d keys may be there", asked, len(hits), len(keys))
	}
	others := make([][16]byte, 10_000)
	for i := range others {
		others[i] = uuid.New()
	}
	if _, _, hits := r.filters.Ask(others); len(hits) > 10 {
		t.Errorf("%d of 10,000 others are said to be there", len(hits))
	}
}

// A segment with more keys than a filter's parts can hold gets none, and is still searched by SQL.
// That is reported once for each close.
func TestK5SegmentTooLargeForAFilter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var told lines
	r.builder = inbox.NewBuilder(r.pool, ring.ConsumerKeys(), slog.New(slog.NewTextHandler(&told, nil)))
	r.builder.Divide(1)
	keys := make([]uuid.UUID, 300)
	for close := 1; close <= 2; close++ {
		for i := range keys {
			keys[i] = uuid.New()
		}
		r.claim(keys...)
		r.closes()
		step := func() {
			if n, err := r.builder.Step(t.Context()); err != nil || n != 0 {
				t.Fatalf("%d filters are built, %v", n, err)
			}
		}
		r.until("it is told of", func() bool { step(); return told.count("too large for a filter") >= close })
		step()
		if n := told.count("too large for a filter"); n != close {
			t.Errorf("told of it %d times after %d closes", n, close)
		}
		r.loads(false)
		if got := r.claim(keys[:3]...); !slices.Equal(got, []int16{1, 1, 1}) {
			t.Errorf("claimed again: %v", got)
		}
	}
}

// K5: a filter belongs to one close. After another close of the same slot, for example after a
// failover that lost the first, it is not asked.
func TestK5FilterOfAnotherClose(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := uuid.New()
	b := uuid.New()
	r.claim(a)
	r.closes()
	first := one[int64](r, `select uses[1] from onlyonce.rings where name = 'consumer_keys'`)
	r.builds()
	// The failover: as before the announcement, with another key.
	r.exec(`update onlyonce.rings set cur = 0, closed = '{}', uses[1] = null where name = 'consumer_keys'`)
	r.exec(`delete from onlyonce.filters`)
	r.claim(b)
	r.exec(`update onlyonce.leases set until = null, nonce = null`)
	var err error
	if r.rotator, err = ring.New(r.pool, ring.ConsumerKeys(), ring.Config{MaxBytes: 1}); err != nil {
		t.Fatal(err)
	}
	r.closes()
	if second := one[int64](r, `select uses[1] from onlyonce.rings where name = 'consumer_keys'`); second == first {
		t.Fatal("the second close has the number of the first")
	}
	if got := r.claim(a, b); got[0] != 1 || got[1] != 1 {
		t.Fatalf("%v", got)
	}
	if _, err := r.pool.Exec(t.Context(), `select onlyonce.claim_consumer_fresh(array[$1::uuid], array[0::bigint], array[$2::bigint])`,
		b, first); err == nil {
		t.Fatal("the filter of the first close counts")
	}
}

// K5: a filter is built after all transactions have ended that may have read the ring before the
// close.
func TestK5FilterWaitsForLateWriters(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claim(uuid.New())
	r.closes()
	open, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Rollback(context.Background()) }()
	if _, err := open.Exec(t.Context(), `select pg_current_xact_id()`); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if n, err := r.builder.Step(t.Context()); err != nil || n != 0 {
			t.Fatalf("%d were built, %v", n, err)
		}
	}
	if err := open.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.builds()
}

// A filter whose segment could not be read is not built, which is an error. The next look builds
// it.
func TestFilterOfASegmentThatCannotBeRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claim(uuid.New())
	r.closes()
	w := &pgtest.Wire{Statement: "copy (", At: func(n int32) pgtest.Cut {
		if n == 1 {
			return pgtest.Unheard
		}
		return pgtest.Pass
	}}
	wired := pgtest.Wired(t, r.pool, pgx.QueryExecModeCacheDescribe, w, nil)
	r.builder = inbox.NewBuilder(wired, ring.ConsumerKeys(), slog.New(slog.DiscardHandler))
	r.until("it was read", func() bool {
		n, err := r.builder.Step(t.Context())
		if failed := w.Seen.Load() > 0; n != 0 || failed != (err != nil) {
			t.Fatalf("%d filters are built, %v", n, err)
		}
		return err != nil
	})
	r.builds()
}

// Filters of segments that are closed no more are deleted, and forgotten.
func TestFiltersAreSwept(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claim(uuid.New())
	r.closes()
	r.builds()
	r.exec(`update onlyonce.rings set horizon = '1 millisecond' where name = 'consumer_keys'`)
	r.until("the segment is emptied", func() bool {
		out, err := r.rotator.Step(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return out.Action == ring.Truncated
	})
	if _, err := r.builder.Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.loads(false)
	if n := one[int](r, `select count(*) from onlyonce.filters`); n != 0 || r.segments() != 0 {
		t.Fatalf("%d stored, %d loaded", n, r.segments())
	}
}

// An open segment that holds nothing that was committed has a filter too.
func TestFilterOfNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	tx, err := r.pool.BeginTx(t.Context(), pgx.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select onlyonce.claim_consumer(array[gen_random_uuid()], array[0::bigint])`); err != nil {
		t.Fatal(err)
	}
	_ = tx.Rollback(t.Context())
	r.closes()
	r.builds()
	if got := r.claim(uuid.New()); got[0] != 0 {
		t.Fatal(got)
	}
}
