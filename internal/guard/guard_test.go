package guard

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

const fenceSQL = `select onlyonce.fence(c.id, l.epoch, l.nonce, 0, 0, 1, null, null, null, null, '1s', '1s', '10s')
	from onlyonce.cursors c join onlyonce.leases l on l.id = c.id`

// fenced opens a transaction on a fresh cursor, with the fence queued.
func fenced(t *testing.T) (*Tx, *pgx.Conn) {
	t.Helper()
	url := pgtest.URL(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	for _, sql := range []string{
		`create table effects (v text)`,
		`insert into onlyonce.leases (name, epoch, nonce) values ('cursor/s/t/0', 1, gen_random_uuid())`,
		`insert into onlyonce.cursors (id, scope, topic, partition, start_offset, start_policy, run_start)
			select id, 's', 't', 0, 0, 'earliest', 0 from onlyonce.leases`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	other, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close(t.Context()) })
	tx := Begin(conn)
	tx.Engine("fence", fenceSQL)
	return tx, other
}

func count(t *testing.T, conn *pgx.Conn, sql string) (n int) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestCommitIsOneRoundTripAndAllOrNothing(t *testing.T) {
	t.Parallel()
	tx, other := fenced(t)
	tx.Queue(`insert into effects values ($1)`, "a")
	if err := tx.Commit(time.Second * 5); err != nil || !tx.Committed() {
		t.Fatal(err)
	}
	tx.Rollback(time.Second)
	if count(t, other, `select count(*) from effects`) != 1 || count(t, other, `select count(*) from onlyonce.progress`) != 1 {
		t.Error("the commit is not whole")
	}
	if _, err := tx.Exec(t.Context(), `select 1`); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// T6: a COMMIT that got past the facade (queued here as the engine queues) is refused by the
// database itself.
func TestT6CommitOfAHandlerIsRefusedByTheDatabase(t *testing.T) {
	t.Parallel()
	tx, other := fenced(t)
	tx.Queue(`insert into effects values ('a')`)
	tx.Engine("", "commit")
	_, err := tx.Exec(t.Context(), `insert into effects values ('b')`)
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "OO002" {
		t.Errorf("%v, want OO002", err)
	}
	if err := tx.Commit(5 * time.Second); err == nil {
		t.Error("committed")
	}
	tx.Rollback(5 * time.Second)
	if n := count(t, other, `select count(*) from effects`); n != 0 {
		t.Errorf("%d effects", n)
	}
}

// T6: a transaction that was ended is noticed at the statement, by its tag or by the connection's
// status.
func TestT6EndedTransactionIsNoticed(t *testing.T) {
	for _, sql := range []string{"rollback", "rollback and chain", "prepare transaction 'x'"} {
		t.Run(sql, func(t *testing.T) {
			t.Parallel()
			tx, other := fenced(t)
			tx.Engine("", sql)
			if err := tx.flush(t.Context()); err == nil {
				t.Errorf("%s went unnoticed", sql)
			}
			if _, err := tx.Exec(t.Context(), `insert into effects values ('b')`); err == nil {
				t.Error("a statement was sent outside the engine's transaction")
			}
			if err := tx.Commit(5 * time.Second); err == nil {
				t.Error("committed")
			}
			tx.Rollback(5 * time.Second)
			if n := count(t, other, `select count(*) from effects`); n != 0 {
				t.Errorf("%d effects", n)
			}
		})
	}
}

// T6: a layer over a handle fails the transaction with an error of its own, as long as there is a
// transaction.
func TestT6LayerRefuses(t *testing.T) {
	t.Parallel()
	refused := errors.New("a layer's own")
	tx, other := fenced(t)
	handle := tx.Handle
	if err := handle.Refuse(refused); !errors.Is(err, refused) {
		t.Errorf("%v", err)
	}
	tx.Queue(`insert into effects values ('a')`)
	if err := tx.Commit(time.Second * 5); !errors.Is(err, refused) || tx.Committed() {
		t.Errorf("Commit: %v", err)
	}
	tx.Rollback(time.Second)
	if n := count(t, other, `select count(*) from effects`); n != 0 {
		t.Errorf("%d effects", n)
	}
	if err := handle.Refuse(refused); !errors.Is(err, ErrClosed) {
		t.Errorf("after its end: %v", err)
	}
}

func TestControls(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"commit": true, " \n\tBegin": true, "END;": true, "abort": true, "start transaction": true, "rollback to x": true,
		"savepoint a": true, "release a": true, "prepare transaction 'a'": true, "/* a /* b */ c */ -- d\n ;commit": true,
		"/**/commit": true, "--\ncommit": true, "-- x\rsavepoint s": true, "--\r\ncommit": true,
		"prepare p as select 1": false, "select 1": false, "insert into commit values (1)": false, "(select 1)": false, "": false,
		"-- commit": false, "/* commit": false, "committed()": false, "endure": false, "with begin as (select 1) select": false,
	} {
		if got, _ := classifyStatement(sql); got != want {
			t.Errorf("%q: %v", sql, got)
		}
	}
}

// T6: words of a literal, of a quoted name or of a comment are not the statement's. A table that is
// taken for one of the transaction's would be there for the next handler.
func TestT6WordsInQuotesAreNotTheStatements(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"create temp table t (v text) on commit drop":                                       false,
		"create temp table t (v text default 'x') on commit drop":                           false,
		`create temp table "t""t" (v text) on/**/commit drop`:                               false,
		"create temp table t (v text default 'on commit drop')":                             true,
		"create temp table t (v text default 'it''s on commit drop')":                       true,
		`create temp table t ("on commit drop" text)`:                                       true,
		"create temp table t (v text) -- on commit drop":                                    true,
		"create temp table t (v text) /* on commit drop */":                                 true,
		"create temp table t (v text default $$on commit drop$$)":                           true,
		`create temp table t (v text default E'\' on commit drop')`:                         true,
		"create temp table t as select 1 as oncommit":                                       true,
		"create temp table t as select 'on' as v -- '\n, 'commit drop' as w":                true,
		"create temp table t on commit preserve rows as select 1 as drop, 'on commit drop'": true,
	} {
		if _, got := classifyStatement(sql); got != want {
			t.Errorf("%q: %v", sql, got)
		}
	}
}

func FuzzControls(f *testing.F) {
	f.Add("/* */ commit")
	f.Add("--\n")
	f.Fuzz(func(t *testing.T, sql string) {
		for _, comment := range []string{"/* x */ -- y\n", "-- y\r"} {
			plain, left := classifyStatement(sql)
			if behind, leaves := classifyStatement(comment + sql); behind != plain || leaves != left {
				t.Fatalf("a comment in front hides %q", sql)
			}
		}
	})
}

func TestOpenRowsAreRefusedAndClosedAtTheEnd(t *testing.T) {
	t.Parallel()
	tx, other := fenced(t)
	if _, err := tx.Query(t.Context(), `select generate_series(1, 1000)`); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `insert into effects values ('a')`); !errors.Is(err, ErrRowsOpen) {
		t.Errorf("%v", err)
	}
	if err := tx.Commit(5 * time.Second); err == nil {
		t.Error("committed although a statement was refused")
	}
	tx.Rollback(5 * time.Second)
	if n := count(t, other, `select count(*) from effects`); n != 0 {
		t.Errorf("%d effects", n)
	}
}

// A statement by itself is as guarded as one in a pipeline. pgx sends a text without parameters by
// the simple protocol, which takes several statements.
func TestSingleStatementsAreGuarded(t *testing.T) {
	type do func(tx *Tx) error
	exec := func(sql string, args ...any) do {
		return func(tx *Tx) error { _, err := tx.Exec(t.Context(), sql, args...); return err }
	}
	scan := func(sql string, args ...any) do {
		return func(tx *Tx) error { var n int; return tx.QueryRow(t.Context(), sql, args...).Scan(&n) }
	}
	simple := pgx.QueryExecModeSimpleProtocol
	for name, c := range map[string]struct {
		do do
		ok bool
	}{
		"exec":                     {exec(`insert into effects values ($1)`, "b"), true},
		"query row":                {scan(`select $1::int`, 1), true},
		"no row":                   {func(tx *Tx) error { _ = scan(`select 1 where $1`, false)(tx); return nil }, true},
		"error":                    {exec(`select 1 / $1::int`, 0), false},
		"error of a row":           {scan(`select 1 / $1::int`, 0), false},
		"wrong number":             {exec(`insert into effects values ($1)`, "b", "c"), false},
		"two statements":           {exec(`insert into effects values ('b'); commit`), false},
		"two with a parameter":     {exec(`insert into effects values ($1); commit`, "b"), false},
		"two by the simple way":    {exec(`insert into effects values ($1); commit`, simple, "b"), false},
		"two rows' worth":          {scan(`select 1; commit`), false},
		"two rows by the same way": {scan(`select $1::int; commit`, simple, 1), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tx, other := fenced(t)
			if err := tx.flush(t.Context()); err != nil { // from here on nothing is queued
				t.Fatal(err)
			}
			if err := c.do(tx); (err == nil) != c.ok {
				t.Errorf("%v", err)
			}
			err := tx.Commit(5 * time.Second)
			tx.Rollback(5 * time.Second)
			if (err == nil) != c.ok {
				t.Errorf("commit: %v", err)
			}
			want := 0
			if c.ok {
				want = 1
			}
			if n := count(t, other, `select count(*) from onlyonce.progress`); n != want {
				t.Errorf("%d batches committed, want %d", n, want)
			}
		})
	}
}

// A connection whose handler was abandoned does not go back to a pool, even if no statement was
// sent on it: its socket is closed.
func TestAbandonedConnectionIsClosed(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	tx := Begin(conn)
	tx.Abandon()
	tx.Rollback(time.Second)
	if !conn.IsClosed() {
		t.Error("the connection counts as open")
	}
}
