// Package sqlsuite has the tests of package sqltx that every driver of database/sql must pass. For
// example package sqltx runs it with pgx, and the module test/compat with lib/pq.
package sqlsuite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/sqltx"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Driver is one way to reach a server through database/sql.
type Driver struct {
	Name    string // of the subtest
	Driver  string // the name under which the driver is registered
	Options string // added to the server's address, for example "binary_parameters=yes"
}

// Run runs the whole suite on each driver.
func Run(t *testing.T, drivers ...Driver) {
	t.Run("Claim", func(t *testing.T) { claims(t, drivers) })
	t.Run("K2UncommittedCopy", func(t *testing.T) { uncommittedCopies(t, drivers) })
	t.Run("EnqueueWritesTheSameRows", func(t *testing.T) { sameRows(t, drivers) })
	t.Run("EnqueueErrors", func(t *testing.T) { enqueueErrors(t, drivers) })
	t.Run("DoAppliesOnce", func(t *testing.T) { doAppliesOnce(t, drivers) })
	t.Run("T4DoWhoseCommitHasNoAnswer", func(t *testing.T) { doWhoseCommitHasNoAnswer(t, drivers) })
	t.Run("T4DoWhoseCommitComesLate", func(t *testing.T) { doWhoseCommitComesLate(t, drivers) })
	t.Run("T12DoOnAStaleConnection", func(t *testing.T) { doOnAStaleConnection(t, drivers) })
	t.Run("DoRunsAgain", func(t *testing.T) { doRunsAgain(t, drivers) })
	t.Run("DoBounds", func(t *testing.T) { doBounds(t, drivers) })
	t.Run("DoFaults", func(t *testing.T) { doFaults(t, drivers) })
}

// patience bounds the waits of tests.
var patience = pgtest.Patience(time.Minute)

// Each runs a test on each driver, with a database of its own.
func Each(t *testing.T, drivers []Driver, test func(t *testing.T, db *sql.DB, pool *pgxpool.Pool)) {
	for _, d := range drivers {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.DB(t)
			test(t, Open(t, d, pool), pool)
		})
	}
}

// Open reaches the database of a pool through a driver, until the test ends.
func Open(t *testing.T, d Driver, pool *pgxpool.Pool) *sql.DB {
	t.Helper()
	db, err := sql.Open(d.Driver, with(pool.Config().ConnString(), d.Options))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func with(address, options string) string {
	if options == "" {
		return address
	}
	if strings.Contains(address, "?") {
		return address + "&" + options
	}
	return address + "?" + options
}

// InTx runs f in a transaction and commits.
func InTx(t *testing.T, db *sql.DB, f func(tx *sql.Tx) error) error {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// Key is a key of the suite's scope.
func Key(id, payload string) dedupe.Key {
	return dedupe.Key{Scope: "stock", ID: id, Fingerprint: dedupe.FingerprintOf([]byte(payload))}
}

// T1, K1: outcomes are those of pgx, on the same rows: a key that one stack has claimed is a
// duplicate for the other.
func claims(t *testing.T, drivers []Driver) {
	t.Parallel()
	Each(t, drivers, func(t *testing.T, db *sql.DB, pool *pgxpool.Pool) {
		claim := func(keys ...dedupe.Key) (outcomes []dedupe.Outcome) {
			err := InTx(t, db, func(tx *sql.Tx) (err error) {
				outcomes, err = sqltx.ClaimAll(t.Context(), tx, keys)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			return outcomes
		}
		native := func(k dedupe.Key) (o dedupe.Outcome) {
			err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
				o, err = dedupe.Claim(t.Context(), tx, k)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			return o
		}
		if o := native(Key("from pgx", "1")); o != dedupe.Fresh {
			t.Fatal(o)
		}
		got := fmt.Sprint(claim(Key("a", "1"), Key("from pgx", "1"), Key("a", "1"), Key("from pgx", "2"), Key("a", "2")))
		if got != "[fresh duplicate duplicate conflict conflict]" {
			t.Error(got)
		}
		if o := native(Key("a", "1")); o != dedupe.Duplicate {
			t.Errorf("%v for pgx", o)
		}
		if got := claim(); len(got) != 0 {
			t.Errorf("no keys: %v", got)
		}

		// After a rollback, the claim does not exist.
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if o, err := sqltx.Claim(t.Context(), tx, Key("b", "1")); err != nil || o != dedupe.Fresh {
			t.Fatal(o, err)
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		if got := claim(Key("b", "1")); got[0] != dedupe.Fresh {
			t.Errorf("%v after a rollback", got)
		}
		if _, err := sqltx.Claim(t.Context(), tx, Key("c", "1")); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("in a transaction that has ended: %v", err)
		}
	})
}

// K2: a copy of an uncommitted claim waits, and then the caller gets the server's error with its
// SQLSTATE, whichever the driver.
func uncommittedCopies(t *testing.T, drivers []Driver) {
	t.Parallel()
	Each(t, drivers, func(t *testing.T, db *sql.DB, pool *pgxpool.Pool) {
		for level, want := range map[sql.IsolationLevel]string{
			sql.LevelReadCommitted:  "duplicate",
			sql.LevelRepeatableRead: "40001",
			sql.LevelSerializable:   "40001",
		} {
			k := Key(level.String(), "1")
			first, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := sqltx.Claim(t.Context(), first, k); err != nil {
				t.Fatal(err)
			}
			got := make(chan string, 1)
			go func() {
				tx, err := db.BeginTx(context.Background(), &sql.TxOptions{Isolation: level})
				if err != nil {
					got <- err.Error()
					return
				}
				defer func() { _ = tx.Rollback() }()
				var one int
				_ = tx.QueryRow("select 1").Scan(&one) // the snapshot is taken here
				o, err := sqltx.Claim(context.Background(), tx, k)
				var pg *pgconn.PgError
				switch {
				case errors.As(err, &pg):
					got <- pg.Code
				case err != nil:
					got <- err.Error()
				default:
					got <- o.String()
				}
			}()
			waiting(t, pool)
			if err := first.Commit(); err != nil {
				t.Fatal(err)
			}
			if o := <-got; o != want {
				t.Errorf("%v: %s, want %s", level, o, want)
			}
		}
	})
}

// waiting waits until a session of the database waits for a lock.
func waiting(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		var n int
		err := pool.QueryRow(
			t.Context(),
			`select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
		).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return
		}
		if time.Now().After(deadline) {
			pgtest.GaveUp(t, patience, "a session that waits for a lock")
		}
	}
}

// hostile is text that an array literal has to quote.
const hostile = `a"b\c,{d} 'e' NULL é $1`

// calls differ in everything that a row may hold.
func calls() []outbox.Call {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return []outbox.Call{
		{Sink: "payments", Name: "charge", Scope: "checkout", ID: "1", Body: all},
		{
			Sink:        "payments",
			Name:        hostile,
			Scope:       hostile,
			Tenant:      hostile,
			ID:          hostile,
			OrderingKey: hostile,
			Method:      "PUT",
			Target:      "/a%20b?c=%22",
			Header:      http.Header{"X-Quoted": {`"a\b", {c}`}, "Accept": {"*/*"}},
			Trace:       "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\na=b,c=d",
			Capture:     true,
			NotBefore:   time.Date(2030, 1, 2, 3, 4, 5, 6000, time.FixedZone("x", 3600)),
			Body:        []byte("NULL"),
		},
		{Sink: "NULL", Name: "NULL", Scope: "NULL", ID: "", OrderingKey: "NULL"},
		{Sink: "mail", Name: "hello", Scope: "checkout", ID: "3", OrderingKey: "k", Sealer: reversing{}, Body: []byte("secret")},
	}
}

// reversing is a Sealer that tests can read.
type reversing struct{}

func (reversing) Seal(_ [16]byte, body []byte) ([]byte, error) {
	b := slices.Clone(body)
	slices.Reverse(b)
	return b, nil
}
func (r reversing) Open(key [16]byte, body []byte) ([]byte, error) { return r.Seal(key, body) }

// rowsSQL reads everything that Enqueue decides about a call, but for what it chooses at random:
// the lane of a call without an ordering key.
const rowsSQL = `select r::text || encode(body, 'hex') from (
  select key,
         order_key,
         case when order_key is not null then lane end as lane,
         sink,
         tenant,
         scope,
         name,
         method,
         target,
         headers,
         trace,
         not_before,
         origin_time,
         redo,
         capture,
         sealed,
         body
    from onlyonce.outbox_log order by key) r`

// O1: the rows are byte for byte those that pgx writes, and a call that one stack has enqueued is
// the same call for the other.
func sameRows(t *testing.T, drivers []Driver) {
	t.Parallel()
	all := calls()
	all[2].ID = "NULL"
	written := func(t *testing.T, pool *pgxpool.Pool) []string {
		found, err := pool.Query(t.Context(), rowsSQL)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(found, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return lines
	}
	native := func(t *testing.T, pool *pgxpool.Pool) {
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return outbox.EnqueueAll(t.Context(), tx, all...) })
		if err != nil {
			t.Fatal(err)
		}
	}
	reference := pgtest.DB(t)
	native(t, reference)
	want := written(t, reference)
	Each(t, drivers, func(t *testing.T, db *sql.DB, pool *pgxpool.Pool) {
		err := InTx(t, db, func(tx *sql.Tx) error { return sqltx.EnqueueAll(t.Context(), tx, all...) })
		if err != nil {
			t.Fatal(err)
		}
		got := written(t, pool)
		if len(got) != len(all) || !slices.Equal(got, want) {
			t.Errorf("rows\n%s\nand pgx writes\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		native(t, pool)
		if again := written(t, pool); !slices.Equal(again, got) {
			t.Errorf("pgx enqueued the same calls again:\n%s", strings.Join(again, "\n"))
		}
		err = InTx(t, db, func(tx *sql.Tx) error { return sqltx.Enqueue(t.Context(), tx, all[0]) })
		if err != nil || len(written(t, pool)) != len(all) {
			t.Errorf("the same call again: %v", err)
		}
	})
}

// What the server and the checks refuse is reported by the same errors, and a transaction that has
// failed is not committed.
func enqueueErrors(t *testing.T, drivers []Driver) {
	t.Parallel()
	Each(t, drivers, func(t *testing.T, db *sql.DB, pool *pgxpool.Pool) {
		all := calls()
		if err := InTx(t, db, func(tx *sql.Tx) error { return sqltx.Enqueue(t.Context(), tx, all[0]) }); err != nil {
			t.Fatal(err)
		}
		other := all[0]
		other.Body = []byte("other bytes")
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback() }()
		if err := sqltx.Enqueue(t.Context(), tx, other); !errors.Is(err, outbox.ErrConflict) {
			t.Errorf("other bytes: %v", err)
		}
		if err := tx.Commit(); err == nil {
			t.Error("the failed transaction was committed")
		}
		for _, c := range []struct{ got, want error }{
			{InTx(t, db, func(tx *sql.Tx) error { return sqltx.Enqueue(t.Context(), tx, all[2]) }), outbox.ErrCall}, // has no ID
			{InTx(t, db, func(tx *sql.Tx) error { return sqltx.EnqueueAll(t.Context(), tx, all[1], all[1]) }), outbox.ErrCall},
			{sqltx.Enqueue(t.Context(), (*sql.Tx)(nil), all[1]), dedupe.ErrNoTransaction},
			{InTx(t, db, func(tx *sql.Tx) error {
				_, err := sqltx.Claim(t.Context(), tx, dedupe.Key{Scope: "s", ID: "i"})
				return err
			}), dedupe.ErrKey},
		} {
			if !errors.Is(c.got, c.want) {
				t.Errorf("%v is not %v", c.got, c.want)
			}
		}
		if _, err := sqltx.Claim(t.Context(), nil, Key("a", "1")); !errors.Is(err, dedupe.ErrNoTransaction) {
			t.Errorf("nil: %v", err)
		}
		var n int
		if err := pool.QueryRow(t.Context(), `select count(*) from onlyonce.outbox_log`).Scan(&n); err != nil || n != 1 {
			t.Errorf("%d rows, %v", n, err)
		}
	})
}
