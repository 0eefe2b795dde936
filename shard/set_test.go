package shard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/shard"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func newSet(t *testing.T, pools map[string]*pgxpool.Pool, of func(string) string) *shard.Set {
	t.Helper()
	s, err := shard.New(shard.Config{Pools: pools, OfPlace: of})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func count(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func TestFaultsOfASet(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	for name, c := range map[string]struct {
		pools map[string]*pgxpool.Pool
		of    func(string) string
		want  []string
	}{
		"nothing": {nil, nil, []string{"Config.Pools: must not be empty", "Config.OfPlace: must not be nil"}},
		"no pool": {
			map[string]*pgxpool.Pool{"a": nil},
			func(string) string { return "a" },
			[]string{`Config.Pools["a"]: must not be nil`},
		},
		"one twice": {
			map[string]*pgxpool.Pool{"a": pool, "b": pool},
			func(string) string { return "a" },
			[]string{`"a" and "b" are one database`},
		},
		"without name": {map[string]*pgxpool.Pool{"": pool}, func(string) string { return "" }, []string{"give it a name"}},
	} {
		_, err := shard.New(shard.Config{Pools: c.pools, OfPlace: c.of})
		for _, want := range c.want {
			if !errors.Is(err, shard.ErrConfig) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
	s := newSet(t, map[string]*pgxpool.Pool{"a": pool}, func(place string) string {
		if place == "panics" {
			panic("no such tenant")
		}
		return place
	})
	for _, place := range []string{"panics", "b"} {
		if _, err := s.Find(t.Context(), place); err == nil {
			t.Errorf("%s: no error", place)
		}
	}
	if _, err := s.OfPartition("orders", 0); !errors.Is(err, shard.ErrConfig) ||
		!strings.Contains(err.Error(), "Config.OfPartition: must not be nil") {
		t.Errorf("no function for partitions: %v", err)
	}
}

// N1: many processes, half of which choose another database, meet new places at once. A place gets
// one shard, or none yet.
func TestN1NewPlaceGetsOneShard(t *testing.T) {
	t.Parallel()
	pools := map[string]*pgxpool.Pool{"a": pgtest.DB(t), "b": pgtest.DB(t)}
	const places, processes = 40, 6
	var wg sync.WaitGroup
	names := []string{"a", "b"}
	for n := range processes {
		of := names[n%2]
		s := newSet(t, pools, func(string) string { return of })
		wg.Go(func() {
			for i := range places {
				if _, err := s.Find(t.Context(), fmt.Sprint("tenant ", i)); err != nil && !errors.Is(err, shard.ErrElsewhere) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for i := range places {
		place := fmt.Sprint("tenant ", i)
		const here = `select count(*) from onlyonce.places where place = $1 and state = 'here'`
		a := count(t, pools["a"], here, place)
		b := count(t, pools["b"], here, place)
		if a+b > 1 {
			t.Errorf("%s lives in both", place)
		}
	}
	// Once they agree, each has one.
	s := newSet(t, pools, func(string) string { return "a" })
	if _, err := s.Find(t.Context(), "another"); err != nil {
		t.Error(err)
	}
	wrong := newSet(t, pools, func(string) string { return "b" })
	if _, err := wrong.Find(t.Context(), "another"); !errors.Is(err, shard.ErrElsewhere) {
		t.Errorf("a process that chooses another database: %v", err)
	}
	if n := count(t, pools["b"], `select count(*) from onlyonce.places where place = 'another'`); n != 0 {
		t.Error("the row of a process that was refused stays")
	}
}

// N1: a process that records a place may end in the middle. One that chooses another database is
// told how the place comes to live there.
func TestN1PlaceThatStaysClaimed(t *testing.T) {
	t.Parallel()
	a := pgtest.DB(t)
	b := pgtest.DB(t)
	pgtest.Exec(t, b, `insert into onlyonce.places (place, state, nonce) values ('acme', 'claimed', gen_random_uuid())`)
	s := newSet(t, map[string]*pgxpool.Pool{"a": a, "b": b}, func(string) string { return "a" })
	if _, err := s.Find(t.Context(), "acme"); !errors.Is(err, shard.ErrElsewhere) ||
		!strings.Contains(err.Error(), `is claimed in database "b"`) ||
		!strings.Contains(err.Error(), `onlyonce place adopt -place acme -reason WHY`) {
		t.Errorf("%v", err)
	}
	if _, err := ops.AdoptPlace(t.Context(), b, ops.By{Actor: "ann", Reason: "OPS-40"}, ops.AdoptPlaceInput{Place: "acme"}); err != nil {
		t.Fatal(err)
	}
	s = newSet(t, map[string]*pgxpool.Pool{"a": a, "b": b}, func(string) string { return "b" })
	if _, err := s.Find(t.Context(), "acme"); err != nil {
		t.Error(err)
	}
}

// N1: a database that does not answer might have the place.
func TestN1DatabaseThatIsDown(t *testing.T) {
	t.Parallel()
	a := pgtest.DB(t)
	b := pgtest.DB(t)
	down, err := pgxpool.NewWithConfig(t.Context(), b.Config())
	if err != nil {
		t.Fatal(err)
	}
	down.Close()
	s := newSet(t, map[string]*pgxpool.Pool{"a": a, "b": down}, func(string) string { return "a" })
	if _, err := s.Find(t.Context(), "acme"); err == nil || errors.Is(err, shard.ErrElsewhere) {
		t.Errorf("%v", err)
	}
	s = newSet(t, map[string]*pgxpool.Pool{"a": a, "b": b}, func(string) string { return "a" })
	if _, err := s.Find(t.Context(), "acme"); err != nil {
		t.Errorf("when it is up again: %v", err)
	}
}

// N2: leaving waits for the transactions that have entered, and refuses those that come later.
func TestN2LeavingWaits(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	s := newSet(t, map[string]*pgxpool.Pool{"a": pool}, func(string) string { return "a" })
	if _, err := s.Find(t.Context(), "acme"); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `create table effects (id int)`)
	begin := func(level pgx.TxIsoLevel) pgx.Tx {
		t.Helper()
		tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
		return tx
	}
	inside := begin(pgx.ReadCommitted)
	old := begin(pgx.RepeatableRead)
	if err := shard.Enter(t.Context(), inside, "acme"); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Exec(t.Context(), `select 1 from onlyonce.places`); err != nil { // its snapshot is taken
		t.Fatal(err)
	}
	left := make(chan error, 1)
	go func() {
		_, err := pool.Exec(t.Context(), `select onlyonce.leave_place('acme', true, 'b')`)
		left <- err
	}()
	pgtest.Until(t, pgtest.Patience(30*time.Second), "leaving waits", func() bool {
		return count(
			t,
			pool,
			`select count(*) from pg_locks
				where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())
				and not granted`,
		) == 1
	})
	if _, err := inside.Exec(t.Context(), `insert into effects values (1)`); err != nil {
		t.Fatal(err)
	}
	if err := inside.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-left; err != nil {
		t.Fatal(err)
	}
	var pg *pgconn.PgError
	if err := shard.Enter(t.Context(), old, "acme"); !errors.As(err, &pg) || pg.Code != "40001" {
		t.Errorf("a transaction whose snapshot is older: %v", err)
	}
	if err := old.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	enter := func(level pgx.TxIsoLevel, place string) error {
		tx := begin(level)
		defer func() { _ = tx.Rollback(t.Context()) }()
		return shard.Enter(t.Context(), tx, place)
	}
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		if err := enter(level, "acme"); !errors.Is(err, shard.ErrElsewhere) || errors.Is(err, shard.ErrUnknown) {
			t.Errorf("%s, afterwards: %v", level, err)
		}
		if err := enter(level, "nobody"); !errors.Is(err, shard.ErrUnknown) || !errors.Is(err, shard.ErrElsewhere) {
			t.Errorf("%s, a place that is not known: %v", level, err)
		}
	}
	if _, err := newSet(t, map[string]*pgxpool.Pool{"a": pool}, func(string) string { return "a" }).Find(
		t.Context(),
		"acme",
	); !errors.Is(err, shard.ErrElsewhere) {
		t.Errorf("another process: %v", err)
	}
}

// A place that an operator has deleted is asked for again.
func TestForget(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	s := newSet(t, map[string]*pgxpool.Pool{"a": pool}, func(string) string { return "a" })
	for range 2 {
		if _, err := s.Find(t.Context(), "acme"); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, pool, `delete from onlyonce.places`)
	if _, err := s.Find(t.Context(), "acme"); err != nil || count(t, pool, `select count(*) from onlyonce.places`) != 0 {
		t.Errorf("%v: it was asked for again", err)
	}
	s.Forget("acme")
	if _, err := s.Find(t.Context(), "acme"); err != nil || count(t, pool, `select count(*) from onlyonce.places`) != 1 {
		t.Error(err)
	}
}
