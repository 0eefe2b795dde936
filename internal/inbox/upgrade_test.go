package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// before applies the migrations up to the one that makes the rings, which it returns.
func before(t *testing.T, pool *pgxpool.Pool) (rings string) {
	t.Helper()
	names, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		sql, err := migrations.FS.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(sql), "rename to keys_old") {
			return string(sql)
		}
		if _, err := pool.Exec(t.Context(), string(sql)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	t.Fatal("no migration makes the rings")
	return ""
}

// K3: the inbox becomes rings under claims of code that knows one table, and then of code of both kinds: each key has one effect.
func TestK3MigrationUnderTraffic(t *testing.T) {
	t.Parallel()
	cfg, err := pgxpool.ParseConfig(pgtest.EmptyURL(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	rings := before(t, pool)
	if _, err := pool.Exec(t.Context(), `create table effects (n int not null)`); err != nil {
		t.Fatal(err)
	}
	const keys = 4000
	ctx := context.Background()
	var migrated atomic.Bool
	var claimed, later, failed atomic.Int64
	// worker claims as the engine of one version does, in a fenced transaction.
	worker := func(sql string) error {
		n := rand.IntN(keys)
		key := uuid.NewMD5(uuid.Nil, fmt.Append(nil, n))
		raises := strings.Contains(sql, "fresh")
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `select set_config('onlyonce.fenced', pg_current_xact_id()::text, true)`); err != nil {
				return err
			}
			var outcomes []int16
			if raises {
				if _, err := tx.Exec(ctx, sql, []uuid.UUID{key}, []int64{7}); err != nil {
					return err
				}
			} else if err := tx.QueryRow(ctx, sql, []uuid.UUID{key}, []int64{7}).Scan(&outcomes); err != nil {
				return err
			}
			if !raises && outcomes[0] != 0 {
				return nil
			}
			if _, err := tx.Exec(ctx, `select pg_sleep($1)`, rand.Float64()*0.002); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `insert into effects values ($1)`, n); err != nil {
				return err
			}
			if rand.IntN(20) == 0 {
				return errUndone
			}
			claimed.Add(1)
			if migrated.Load() {
				later.Add(1)
			}
			return nil
		})
		var pg *pgconn.PgError
		switch {
		case errors.Is(err, errUndone):
			return nil
		case errors.As(err, &pg) && pg.Code == "23505" && raises:
			return nil
		case errors.As(err, &pg) && pg.Code == "55000": // began in the old body
			failed.Add(1)
			return nil
		}
		return err
	}
	stop, done := make(chan struct{}), sync.WaitGroup{}
	run := func(sql string) {
		done.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := worker(sql); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 3 {
		run(`select onlyonce.claim($1, $2)`)
		run(`select onlyonce.claim_fresh($1, $2)`)
	}
	reach := func(what *atomic.Int64, n int64) {
		for what.Load() < n && !t.Failed() {
			_, _ = pool.Exec(ctx, `select pg_sleep(0.01)`)
		}
	}
	reach(&claimed, 300)
	if _, err := pool.Exec(ctx, rings); err != nil {
		t.Fatal(err)
	}
	migrated.Store(true)
	for range 2 {
		run(`select onlyonce.claim_log($1, $2)`)
		run(`select onlyonce.claim_log_fresh($1, $2)`)
	}
	reach(&later, 300)
	close(stop)
	done.Wait()
	var doubled, kept int
	err = pool.QueryRow(ctx, `select (select count(*) from (select n from effects group by n having count(*) > 1) d),
	  (select count(*) from onlyonce.keys_old)`).Scan(&doubled, &kept)
	if err != nil || doubled > 0 || kept < 200 {
		t.Errorf("%d keys have more than one effect; %d keys of before: %v", doubled, kept, err)
	}
	var horizon *string
	if err := pool.QueryRow(ctx, `select horizon::text from onlyonce.rings where name = 'keys_log' and closed = '{10}'`).Scan(&horizon); err != nil || horizon != nil {
		t.Errorf("a database that has kept keys for ever has horizon %v, %v", horizon, err)
	}
	t.Logf("%d claimed, %d of them behind the migration, %d had to run again because of it", claimed.Load(), later.Load(), failed.Load())
}

var errUndone = errors.New("undone")

// A claim that has begun in the old body when the migration takes the table does not insert into it afterwards.
func TestK3ClaimThatWaitsForTheMigration(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.EmptyURL(t))
	rings := before(t, pool)
	for _, sql := range []string{`select onlyonce.claim(array[gen_random_uuid()], array[0::bigint])`, `select onlyonce.claim_fresh(array[gen_random_uuid()], array[0::bigint])`} {
		if _, err := pool.Exec(t.Context(), sql); err != nil { // plans are made
			t.Fatal(err)
		}
	}
	migration, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migration.Exec(t.Context(), rings, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	for _, sql := range []string{`select onlyonce.claim(array[gen_random_uuid()], array[0::bigint])`, `select onlyonce.claim_fresh(array[gen_random_uuid()], array[0::bigint])`} {
		go func() {
			_, err := pool.Exec(context.Background(), sql)
			ended <- err
		}()
	}
	for n := 0; n < 2; {
		if err := pool.QueryRow(t.Context(), `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%gen_random%'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
	}
	if err := migration.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var pg *pgconn.PgError
		if err := <-ended; !errors.As(err, &pg) || pg.Code != "55000" && pg.Code != "0A000" {
			t.Errorf("a claim in the old body came to %v", err)
		}
	}
	var old int
	if err := pool.QueryRow(t.Context(), `select count(*) from onlyonce.keys_old`).Scan(&old); err != nil || old != 2 {
		t.Errorf("%d keys in the old table, %v", old, err)
	}
}
