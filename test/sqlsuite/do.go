package sqlsuite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/sqltx"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// work is what Do runs.
type work = func(ctx context.Context, tx *sql.Tx) error

// effects makes a table in which repeated effects are possible.
func effects(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), `create table effects (id text not null)`); err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, pool *pgxpool.Pool, table string) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `select count(*) from `+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// writes is a function for Do that writes an effect and counts its runs.
func writes(id string, runs *atomic.Int32) work {
	return func(ctx context.Context, tx *sql.Tx) error {
		runs.Add(1)
		_, err := tx.ExecContext(ctx, `insert into effects values ($1)`, id)
		return err
	}
}

func doAppliesOnce(t *testing.T, drivers []Driver) {
	t.Parallel()
	Each(t, drivers, func(t *testing.T, db *sql.DB, pool *pgxpool.Pool) {
		effects(t, pool)
		var runs atomic.Int32
		for i, want := range []dedupe.Outcome{dedupe.Fresh, dedupe.Duplicate, dedupe.Duplicate} {
			if got, err := sqltx.Do(t.Context(), db, Key("a", "1"), writes("a", &runs)); err != nil || got != want {
				t.Errorf("%d: %v, %v", i, got, err)
			}
		}
		// Another payload under the id is an error, and changes nothing.
		if got, err := sqltx.Do(t.Context(), db, Key("a", "2"), writes("a", &runs)); got != 0 || !errors.Is(err, dedupe.ErrConflict) {
			t.Errorf("%v, %v", got, err)
		}
		if n := count(t, pool, "effects"); n != 1 || runs.Load() != 1 {
			t.Errorf("%d effects of %d runs", n, runs.Load())
		}
		// With OnConflict, its writes commit.
		cfg := sqltx.DoConfig{OnConflict: writes("aside", &runs)}
		if got, err := cfg.Do(t.Context(), db, Key("a", "2"), writes("a", &runs)); got != dedupe.Conflict ||
			err != nil ||
			count(t, pool, "effects where id = 'aside'") != 1 {
			t.Errorf("%v, %v", got, err)
		}
		// An error of the function, or a panic, takes the claim with it.
		boom := errors.New("boom")
		fails := func(ctx context.Context, tx *sql.Tx) error { return errors.Join(writes("b", &runs)(ctx, tx), boom) }
		if got, err := sqltx.Do(t.Context(), db, Key("b", "1"), fails); got != 0 || !errors.Is(err, boom) {
			t.Errorf("%v, %v", got, err)
		}
		func() {
			defer func() { _ = recover() }()
			_, _ = sqltx.Do(t.Context(), db, Key("b", "1"), func(ctx context.Context, tx *sql.Tx) error { panic(fails(ctx, tx)) })
		}()
		if n := db.Stats().InUse; n != 0 {
			t.Errorf("%d connections are out", n)
		}
		if got, err := sqltx.Do(t.Context(), db, Key("b", "1"), writes("b", &runs)); got != dedupe.Fresh ||
			err != nil ||
			count(t, pool, "effects where id = 'b'") != 1 {
			t.Errorf("%v, %v", got, err)
		}
		// The caller's context has ended before, and while the function runs.
		ended, end := context.WithCancel(t.Context())
		end()
		if got, err := sqltx.Do(ended, db, Key("c", "1"), writes("c", &runs)); got != 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("%v, %v", got, err)
		}
		running, end := context.WithCancel(t.Context())
		got, err := sqltx.Do(running, db, Key("c", "1"), func(ctx context.Context, tx *sql.Tx) error {
			defer end() // its work is done, and COMMIT is not cut short
			return writes("c", &runs)(ctx, tx)
		})
		if got != dedupe.Fresh || err != nil || count(t, pool, "effects where id = 'c'") != 1 {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// through reaches a database through a driver and a wire.
func through(t *testing.T, d Driver, base *pgxpool.Pool, w *pgtest.Wire, hold <-chan struct{}) *sql.DB {
	t.Helper()
	db, err := sql.Open(d.Driver, with(pgtest.Proxied(t, base, w, hold), d.Options))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// first is the wire that does something at the first COMMIT.
func first(what pgtest.Cut) *pgtest.Wire {
	return &pgtest.Wire{Statement: "commit", At: func(n int32) pgtest.Cut {
		if n == 1 {
			return what
		}
		return pgtest.Pass
	}}
}

// T4: the connection breaks at COMMIT, before the server gets it or before its answer comes back.
// The next attempt's claim shows which.
func doWhoseCommitHasNoAnswer(t *testing.T, drivers []Driver) {
	t.Parallel()
	for what, want := range map[pgtest.Cut]struct {
		outcome dedupe.Outcome
		runs    int32
	}{pgtest.Unsent: {dedupe.Fresh, 2}, pgtest.Unheard: {dedupe.Duplicate, 1}} {
		for _, d := range drivers {
			t.Run(fmt.Sprint(d.Name, " ", what), func(t *testing.T) {
				t.Parallel()
				base := pgtest.DB(t)
				effects(t, base)
				w := first(what)
				db := through(t, d, base, w, nil)
				var runs atomic.Int32
				got, err := sqltx.Do(t.Context(), db, Key("a", "1"), writes("a", &runs))
				same := got == want.outcome && runs.Load() == want.runs
				if err != nil || !same || w.Cuts.Load() != 1 {
					t.Errorf("%v, %v; %d runs, %d cuts", got, err, runs.Load(), w.Cuts.Load())
				}
				if count(t, base, "effects") != 1 {
					t.Errorf("%v, %v; %d runs, %d effects", got, err, runs.Load(), count(t, base, "effects"))
				}
			})
		}
	}
}

// T4: COMMIT is still on its way when the client gives up. The next claim waits for the
// transaction. If no attempts are left, the outcome is unknown, and the next delivery finds out.
func doWhoseCommitComesLate(t *testing.T, drivers []Driver) {
	t.Parallel()
	for what, want := range map[pgtest.Cut]dedupe.Outcome{pgtest.Held: dedupe.Duplicate, pgtest.Dropped: dedupe.Fresh} {
		for _, d := range drivers {
			t.Run(fmt.Sprint(d.Name, " ", what), func(t *testing.T) {
				t.Parallel()
				base := pgtest.DB(t)
				effects(t, base)
				hold := make(chan struct{})
				db := through(t, d, base, first(what), hold)
				var runs atomic.Int32
				short := sqltx.DoConfig{MaxAttempts: 2, Timeouts: dedupe.Timeouts{Commit: time.Second, Lock: 50 * time.Millisecond}}
				if got, err := short.Do(t.Context(), db, Key("a", "1"), writes("a", &runs)); got != 0 ||
					!errors.Is(err, dedupe.ErrOutcomeUnknown) {
					t.Errorf("%v, %v", got, err)
				}
				if n := count(t, base, "effects"); n != 0 || runs.Load() != 1 {
					t.Errorf("%d effects of %d runs", n, runs.Load())
				}
				close(hold)
				patient := sqltx.DoConfig{MaxAttempts: 100, Timeouts: dedupe.Timeouts{Lock: patience}}
				if got, err := patient.Do(t.Context(), db, Key("a", "1"), writes("a", &runs)); err != nil ||
					got != want ||
					count(t, base, "effects") != 1 {
					t.Errorf("the next delivery: %v, %v", got, err)
				}
			})
		}
	}
}

// T12: Do tries again on a new connection if its own leads to a server that takes no writes, and
// closes the idle ones, which lead there too. lib/pq begins with READ WRITE, which only a real
// standby refuses: its own test has one.
func doOnAStaleConnection(t *testing.T, drivers []Driver) {
	t.Parallel()
	drivers = slices.DeleteFunc(slices.Clone(drivers), func(d Driver) bool { return d.Driver == "postgres" })
	Each(t, drivers, func(t *testing.T, db *sql.DB, pool *pgxpool.Pool) {
		effects(t, pool)
		db.SetMaxIdleConns(8)
		pgtest.ReadOnly(t, pool, func() {
			held := make([]*sql.Conn, 8)
			for i := range held {
				var err error
				if held[i], err = db.Conn(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range held {
				if err := c.Close(); err != nil { // to db
					t.Fatal(err)
				}
			}
		})
		var runs atomic.Int32
		if got, err := (sqltx.DoConfig{MaxAttempts: 2}).Do(t.Context(), db, Key("a", "1"), writes("a", &runs)); err != nil ||
			got != dedupe.Fresh {
			t.Errorf("%v, %v", got, err)
		}
		if n := count(t, pool, "effects"); n != 1 || runs.Load() != 1 || db.Stats().OpenConnections != 1 {
			t.Errorf("%d effects of %d runs; %d connections", n, runs.Load(), db.Stats().OpenConnections)
		}
	})
}

// If the database asks to run a transaction again, Do runs it again, as a whole and a bounded
// number of times, even if the function swallows the error. Other errors are not repeated.
func doRunsAgain(t *testing.T, drivers []Driver) {
	t.Parallel()
	Each(t, drivers, func(t *testing.T, db *sql.DB, pool *pgxpool.Pool) {
		effects(t, pool)
		cfg := sqltx.DoConfig{MaxAttempts: 3, Backoff: dedupe.Backoff{Min: time.Millisecond}}
		for _, state := range []string{"40001", "40P01"} {
			for fails, want := range map[int32]dedupe.Outcome{2: dedupe.Fresh, 3: 0} {
				for _, swallow := range []bool{false, true} {
					id := fmt.Sprint(state, fails, swallow)
					var runs atomic.Int32
					got, err := cfg.Do(t.Context(), db, Key(id, "1"), func(ctx context.Context, tx *sql.Tx) error {
						if err := writes(id, &runs)(ctx, tx); err != nil || runs.Load() > fails {
							return err
						}
						_, err := tx.ExecContext(ctx, fmt.Sprintf(`do $$ begin raise exception using errcode = '%s'; end $$`, state))
						if swallow {
							return nil
						}
						return err
					})
					written := count(t, pool, "effects where id = '"+id+"'") == 1
					if got != want || (err == nil) != (want != 0) {
						t.Errorf("%s: %v, %v, want %v", id, got, err, want)
					}
					if runs.Load() != 3 || written != (want == dedupe.Fresh) {
						t.Errorf("%s: %v, %v, %d runs", id, got, err, runs.Load())
					}
				}
			}
		}
		for name, fn := range map[string]work{
			"a constraint": func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `insert into effects values (null)`)
				return err
			},
			"a deferred constraint": func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(
					ctx,
					`create table twins (id int unique deferrable initially deferred); insert into twins values (1), (1)`,
				)
				return err
			},
			"a ROLLBACK":   func(context.Context, *sql.Tx) error { return nil },
			"its Rollback": func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
		} {
			var runs atomic.Int32
			got, err := cfg.Do(t.Context(), db, Key(name, "1"), func(ctx context.Context, tx *sql.Tx) error {
				err := errors.Join(writes(name, &runs)(ctx, tx), fn(ctx, tx))
				if name == "a ROLLBACK" {
					_, err = tx.ExecContext(ctx, `rollback`)
				}
				return err
			})
			left := count(t, pool, "effects where id = '"+name+"'")
			if got != 0 || err == nil {
				t.Errorf("%s: %v, %v", name, got, err)
			}
			if runs.Load() != 1 || left != 0 {
				t.Errorf("%s: %v, %v, %d runs", name, got, err, runs.Load())
			}
		}
	})
}

// Bounds and isolation level hold in the function, and none of them stays on the connection. A call
// commits with the effects.
func doBounds(t *testing.T, drivers []Driver) {
	t.Parallel()
	Each(t, drivers, func(t *testing.T, db *sql.DB, pool *pgxpool.Pool) {
		db.SetMaxOpenConns(1)
		cfg := sqltx.DoConfig{
			Isolation: sql.LevelSerializable,
			Timeouts:  dedupe.Timeouts{Lock: 1234 * time.Millisecond, Statement: 5 * time.Minute, Idle: 6 * time.Minute},
		}
		show := func(q interface {
			QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
		}) (s string) {
			err := q.QueryRowContext(
				t.Context(),
				`select concat_ws(
  ' ',
  current_setting('lock_timeout'),
  current_setting('statement_timeout'),
  current_setting('idle_in_transaction_session_timeout'),
  current_setting('transaction_isolation')
)`,
			).Scan(&s)
			if err != nil {
				t.Error(err)
			}
			return s
		}
		before := show(db)
		if _, err := cfg.Do(t.Context(), db, Key("a", "1"), func(ctx context.Context, tx *sql.Tx) error {
			if got := show(tx); got != "1234ms 5min 6min serializable" {
				t.Error(got)
			}
			return sqltx.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Scope: "stock", ID: "a"})
		}); err != nil || count(t, pool, "onlyonce.outbox_log") != 1 {
			t.Error(err)
		}
		if after := show(db); after != before {
			t.Errorf("%s is left", after)
		}
	})
}

func doFaults(t *testing.T, _ []Driver) {
	t.Parallel()
	_, err := (sqltx.DoConfig{
		Isolation:   sql.LevelLinearizable,
		MaxAttempts: 101,
		Backoff:     dedupe.Backoff{Min: time.Minute, Max: time.Second},
		Timeouts:    dedupe.Timeouts{Lock: 1, Statement: 1, Idle: -1, Commit: 2 * time.Hour},
	}).Do(t.Context(), nil, dedupe.Key{}, nil)
	if !errors.Is(err, dedupe.ErrConfig) || !errors.Is(err, dedupe.ErrKey) {
		t.Fatal(err)
	}
	for _, field := range []string{
		"DoConfig.Isolation", "DoConfig.MaxAttempts", "DoConfig.Backoff.Max",
		"DoConfig.Timeouts.Lock", "DoConfig.Timeouts.Statement", "DoConfig.Timeouts.Idle",
		"DoConfig.Timeouts.Commit", "db", "fn", "Scope", "ID", "Fingerprint",
	} {
		if !strings.Contains(err.Error(), ": "+field+": ") {
			t.Errorf("%v does not name %s", err, field)
		}
	}
}
