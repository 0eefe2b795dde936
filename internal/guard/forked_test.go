package guard

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// calls are the methods of a handle, and of what they return.
var calls = map[string]func(ctx context.Context, h *Handle, sql string) error{
	"exec": func(ctx context.Context, h *Handle, sql string) error { _, err := h.Exec(ctx, sql); return err },
	"exec, argument": func(ctx context.Context, h *Handle, sql string) error {
		_, err := h.Exec(ctx, sql+" where $1", true)
		return err
	},
	"query": func(ctx context.Context, h *Handle, sql string) error {
		rows, err := h.Query(ctx, sql)
		rows.Close()
		return errors.Join(err, rows.Err())
	},
	"query row": func(ctx context.Context, h *Handle, sql string) error {
		var v any
		return h.QueryRow(ctx, sql).Scan(&v)
	},
	"batch": func(ctx context.Context, h *Handle, sql string) error {
		b := &pgx.Batch{}
		b.Queue(sql)
		return h.SendBatch(ctx, b).Close()
	},
	"savepoint": func(ctx context.Context, h *Handle, sql string) error {
		return h.Savepoint(ctx, func() error { _, err := h.Exec(ctx, sql); return err })
	},
	"queue and savepoint": func(ctx context.Context, h *Handle, sql string) error {
		h.Queue(sql)
		return h.Savepoint(ctx, func() error { return nil })
	},
	"copy": func(ctx context.Context, h *Handle, _ string) error {
		_, err := h.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"v"}, pgx.CopyFromRows([][]any{{"copied"}}))
		return err
	},
	"late": func(_ context.Context, h *Handle, _ string) error {
		return h.BeforeCommit("late", func([]any) (string, []any) { return `select 1`, nil })
	},
}

// waiting is a copy's source that does not end before it is told to.
type waiting struct{ asked, more chan struct{} }

func (w *waiting) Next() bool {
	w.asked <- struct{}{}
	<-w.more
	return false
}
func (*waiting) Values() ([]any, error) { return nil, nil }
func (*waiting) Err() error             { return nil }

// forked has one call under way, runs the other one meanwhile, and returns the first one's error.
func forked(t *testing.T, h *Handle, other func()) (first error) {
	t.Helper()
	src := &waiting{make(chan struct{}), make(chan struct{})}
	done := make(chan error, 1)
	go func() {
		_, err := h.CopyFrom(t.Context(), pgx.Identifier{"effects"}, []string{"v"}, src)
		done <- err
	}()
	<-src.asked
	other()
	close(src.more)
	return <-done
}

// T6: two calls that overlap fail both, and the transaction, whichever they are; neither reaches
// the connection while the other one has it.
func TestT6CallsThatOverlapFailBoth(t *testing.T) {
	overlap := func(t *testing.T, call func(h *Handle) error) {
		t.Helper()
		t.Parallel()
		tx, other := fenced(t)
		tx.Report = func(err error) { t.Errorf("it is reported as a statement after the end: %v", err) }
		var second error
		first := forked(t, tx.Handle, func() { second = call(tx.Handle) })
		if !errors.Is(first, ErrForked) || second != nil && !errors.Is(second, ErrForked) {
			t.Errorf("first: %v; second: %v", first, second)
		}
		if _, err := tx.Exec(t.Context(), `insert into effects values ('after')`); !errors.Is(err, ErrForked) {
			t.Errorf("after it: %v", err)
		}
		if err := tx.Commit(5 * time.Second); !errors.Is(err, ErrForked) {
			t.Errorf("commit: %v", err)
		}
		tx.Rollback(5 * time.Second)
		if n := count(t, other, `select count(*) from effects`); n != 0 {
			t.Errorf("%d effects", n)
		}
		if n := count(t, tx.conn, `select 1`); n != 1 { // the connection was not spoilt
			t.Error(n)
		}
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			overlap(t, func(h *Handle) error {
				if err := call(t.Context(), h, `select 1`); err != nil {
					return err
				}
				return errors.New("the second call was answered")
			})
		})
	}
	for name, call := range map[string]func(h *Handle){
		"queue": func(h *Handle) { h.Queue(`insert into effects values ('queued')`) },
		"mark":  func(h *Handle) { h.FirstUse([16]byte{1}) },
	} {
		t.Run(name, func(t *testing.T) { overlap(t, func(h *Handle) error { call(h); return nil }) })
	}
}

// T6: a statement that the server works on is a call under way, however it was sent.
func TestT6CallDuringAStatementFailsBoth(t *testing.T) {
	const held = `select 1 from pg_advisory_xact_lock(3)`
	for _, name := range []string{"exec", "exec, argument", "query", "query row", "batch", "savepoint", "queue and savepoint"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tx, other := fenced(t)
			if _, err := other.Exec(t.Context(), `select pg_advisory_lock(3)`); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- calls[name](t.Context(), tx.Handle, held) }()
			for count(
				t,
				other,
				`select count(*) from pg_locks
					where locktype = 'advisory' and not granted
					and database = (select oid from pg_database where datname = current_database())`,
			) == 0 {
				select {
				case err := <-done:
					t.Fatalf("it does not wait: %v", err)
				default:
				}
			}
			if _, err := tx.Exec(t.Context(), `select 1`); !errors.Is(err, ErrForked) {
				t.Errorf("the second call: %v", err)
			}
			if _, err := other.Exec(t.Context(), `select pg_advisory_unlock(3)`); err != nil {
				t.Fatal(err)
			}
			if err := <-done; !errors.Is(err, ErrForked) {
				t.Errorf("the first call: %v", err)
			}
			if err := tx.Commit(5 * time.Second); !errors.Is(err, ErrForked) {
				t.Errorf("commit: %v", err)
			}
			tx.Rollback(5 * time.Second)
		})
	}
}

// slow are rows and results whose methods wait to be let on.
type slow struct{ asked, more chan struct{} }

func (s slow) wait() {
	select {
	case s.asked <- struct{}{}:
	case <-s.more:
	}
	<-s.more
}
func (s slow) Close()                                       { s.wait() }
func (s slow) Err() error                                   { s.wait(); return nil }
func (s slow) CommandTag() (tag pgconn.CommandTag)          { s.wait(); return tag }
func (s slow) FieldDescriptions() []pgconn.FieldDescription { s.wait(); return nil }
func (s slow) Next() bool                                   { s.wait(); return true }
func (s slow) Scan(...any) error                            { s.wait(); return nil }
func (s slow) Values() ([]any, error)                       { s.wait(); return nil, nil }
func (s slow) RawValues() [][]byte                          { s.wait(); return nil }
func (s slow) TypeMap() *pgtype.Map                         { return nil }
func (s slow) Conn() *pgx.Conn                              { return nil }

type slowBatch struct{ slow }

func (s slowBatch) Exec() (tag pgconn.CommandTag, err error) { s.wait(); return tag, nil }
func (s slowBatch) Query() (pgx.Rows, error)                 { s.wait(); return s.slow, nil }
func (s slowBatch) QueryRow() pgx.Row                        { s.wait(); return s.slow }
func (s slowBatch) Tx() pgx.Tx                               { return nil }
func (s slowBatch) Close() error                             { s.wait(); return nil }

// T6: reading rows, and a batch's results, is a call: each method overlaps with another goroutine's
// call, and with itself.
func TestT6ResultsAreReadByOneGoroutine(t *testing.T) {
	type do = func(r guardedRows, b guardedBatch) error
	for name, method := range map[string]do{
		"next":         func(r guardedRows, _ guardedBatch) error { r.Next(); return nil },
		"close":        func(r guardedRows, _ guardedBatch) error { r.Close(); return nil },
		"err":          func(r guardedRows, _ guardedBatch) error { return r.Err() },
		"tag":          func(r guardedRows, _ guardedBatch) error { r.CommandTag(); return nil },
		"fields":       func(r guardedRows, _ guardedBatch) error { r.FieldDescriptions(); return nil },
		"scan":         func(r guardedRows, _ guardedBatch) error { return r.Scan() },
		"values":       func(r guardedRows, _ guardedBatch) error { _, err := r.Values(); return err },
		"raw values":   func(r guardedRows, _ guardedBatch) error { r.RawValues(); return nil },
		"batch, exec":  func(_ guardedRows, b guardedBatch) error { _, err := b.Exec(); return err },
		"batch, query": func(_ guardedRows, b guardedBatch) error { _, err := b.Query(); return err },
		"batch, row":   func(_ guardedRows, b guardedBatch) error { b.QueryRow(); return nil },
		"batch, close": func(_ guardedRows, b guardedBatch) error { return b.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tx, _ := fenced(t)
			if err := tx.flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			one := slow{make(chan struct{}), make(chan struct{})}
			rows := guardedRows{one, tx.Handle}
			batch := guardedBatch{&result{tx: tx, batch: slowBatch{one}}, tx.Handle}
			done := make(chan error, 1)
			go func() { done <- method(rows, batch) }()
			<-one.asked
			second := make(chan error, 1)
			go func() { second <- method(rows, batch) }()
			select {
			case err := <-second:
				if err != nil && !errors.Is(err, ErrForked) {
					t.Errorf("the second call: %v", err)
				}
			case <-one.asked:
				t.Error("the second call has reached the rows while the first one was under way")
			}
			close(one.more)
			if err := <-done; err != nil && !errors.Is(err, ErrForked) {
				t.Errorf("the first call: %v", err)
			}
			if _, err := tx.Exec(t.Context(), `select 1`); !errors.Is(err, ErrForked) {
				t.Errorf("after it: %v", err)
			}
			if err := tx.Commit(5 * time.Second); !errors.Is(err, ErrForked) {
				t.Errorf("commit: %v", err)
			}
			tx.Rollback(5 * time.Second)
		})
	}
}

// T6: goroutines that take turns use one transaction as one goroutine does.
func TestT6GoroutinesInTurn(t *testing.T) {
	t.Parallel()
	tx, other := fenced(t)
	var turn sync.Mutex
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 5 {
				turn.Lock()
				if _, err := tx.Exec(t.Context(), `insert into effects values ($1)`, "a"); err != nil {
					t.Error(err)
				}
				tx.Queue(`insert into effects values ('b')`)
				turn.Unlock()
			}
		})
	}
	all.Wait()
	// Another one in turn, and what it writes stays.
	if err := tx.Savepoint(t.Context(), func() error {
		inside := make(chan error)
		go func() { _, err := tx.Exec(t.Context(), `insert into effects values ('c')`); inside <- err }()
		return <-inside
	}); err != nil {
		t.Error(err)
	}
	if err := tx.Commit(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	if n := count(t, other, `select count(*) from effects`); n != 81 {
		t.Errorf("%d effects", n)
	}
}

// T6: what a goroutine wrote while a savepoint of another one was open would be undone with it,
// unnoticed: nothing is forgiven then.
func TestT6SavepointOfAnotherGoroutine(t *testing.T) {
	for name, fn := range map[string]func(ctx context.Context, h *Handle) error{
		"a write inside": func(ctx context.Context, h *Handle) error {
			return h.Savepoint(ctx, func() error {
				inside := make(chan error)
				go func() { _, err := h.Exec(ctx, `insert into effects values ('lost')`); inside <- err }()
				return errors.Join(<-inside, errNo)
			})
		},
		"interleaved": func(ctx context.Context, h *Handle) error {
			begun := make(chan struct{})
			end := make(chan struct{})
			ended := make(chan error)
			go func() {
				ended <- h.Savepoint(ctx, func() error { close(begun); <-end; return nil })
			}()
			<-begun
			err := h.Savepoint(ctx, func() error { close(end); return <-ended })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tx, other := fenced(t)
			if err := fn(t.Context(), tx.Handle); !errors.Is(err, ErrForked) {
				t.Errorf("%v", err)
			}
			if err := tx.Commit(5 * time.Second); !errors.Is(err, ErrForked) {
				t.Errorf("commit: %v", err)
			}
			tx.Rollback(5 * time.Second)
			if n := count(t, other, `select count(*) from effects`); n != 0 {
				t.Errorf("%d effects", n)
			}
		})
	}
}

// T6: a call from inside of a callback, which the connection is busy with, fails by name.
func TestT6CallFromACallback(t *testing.T) {
	t.Parallel()
	tx, _ := fenced(t)
	b := &pgx.Batch{}
	b.Queue(`select 1`).QueryRow(func(r pgx.Row) error {
		tx.Queue(`insert into effects values ('a')`)
		var n int
		return r.Scan(&n)
	})
	if err := tx.SendBatch(t.Context(), b).Close(); !errors.Is(err, ErrForked) {
		t.Errorf("%v", err)
	}
	tx.Rollback(5 * time.Second)
}

// T6: a handler that returns while a goroutine of its is in a call fails; the connection is not
// used by two until that call has ended.
func TestT6HandlerReturnsBeforeItsGoroutine(t *testing.T) {
	t.Parallel()
	tx, other := fenced(t)
	var tookBack sync.WaitGroup
	if err := forked(t, tx.Handle, func() {
		tookBack.Go(tx.TakeBack)
		for !tx.closing() {
			continue
		}
	}); err != nil {
		t.Errorf("the goroutine's call: %v", err)
	}
	tookBack.Wait()
	if err := tx.Commit(5 * time.Second); !errors.Is(err, ErrUnderWay) {
		t.Errorf("commit: %v", err)
	}
	tx.Rollback(5 * time.Second)
	if n := count(t, other, `select count(*) from effects`); n != 0 {
		t.Errorf("%d effects", n)
	}
}

func (t *Tx) closing() bool {
	t.gate.mu.Lock()
	defer t.gate.mu.Unlock()
	return !t.gate.lent
}

// T6: the handle of an earlier message is refused while a later one's is lent, by each method; what
// it queues is reported and fails the attempt.
func TestT6HandleOfAnEarlierMessage(t *testing.T) {
	t.Parallel()
	tx, other := fenced(t)
	var reported []error
	tx.Report = func(err error) { reported = append(reported, err) }
	tx.TakeBack()
	kept := tx.Lend(nil)
	rows, err := kept.Query(t.Context(), `select 1`)
	if err != nil {
		t.Fatal(err)
	}
	tx.TakeBack()
	later := tx.Lend(nil)
	for name, call := range calls {
		if err := call(t.Context(), kept, `select 1`); !errors.Is(err, ErrClosed) && name != "queue and savepoint" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if rows.Next() || !errors.Is(rows.Err(), ErrClosed) {
		t.Errorf("rows of an earlier message: %v", rows.Err())
	}
	if _, err := later.Exec(t.Context(), `insert into effects values ('later')`); err != nil {
		t.Errorf("the later message: %v", err)
	}
	reported = nil
	kept.Queue(`insert into effects values ('lost')`)
	if len(reported) != 1 ||
		!errors.Is(reported[0], ErrClosed) ||
		!strings.Contains(reported[0].Error(), "insert into effects values ('lost')") {
		t.Errorf("reported: %v", reported)
	}
	if err := tx.Commit(5 * time.Second); !errors.Is(err, ErrClosed) {
		t.Errorf("commit: %v", err)
	}
	tx.Rollback(5 * time.Second)
	kept.Queue(`insert into effects values ('lost for good')`)
	if len(reported) != 2 {
		t.Errorf("behind the end %d were reported, want one more", len(reported)-1)
	}
	if n := count(t, other, `select count(*) from effects`); n != 0 {
		t.Errorf("%d effects", n)
	}
}

// T6: what a handler leaves in the session is not there for the next one on the connection; what
// ends with the transaction costs no connection.
func TestT6SessionIsNotHandedOn(t *testing.T) {
	for sql, closes := range map[string]bool{
		`create temp table scratch (i int)`:                     true,
		`create temporary table scratch (i int) on commit drop`: false,
		`create local temp table scratch (i int)`:               true,
		`create or replace temp view v as select 1`:             true,
		`prepare p as select 1`:                                 true,
		`declare c cursor with hold for select 1`:               true,
		`declare c cursor for select 1`:                         false,
		`listen l`:                                              true,
		`set client_encoding = 'latin1'`:                        true,
		"-- x\rset client_encoding = 'latin1'":                  true,
		`set default_transaction_read_only = on`:                true,
		`set local statement_timeout = '1min'`:                  false,
		`set constraints nothing immediate`:                     false,
		`set session characteristics as transaction read only`:  true,
		`reset all`:                 true,
		`select 1`:                  false,
		`create table "on" (i int)`: false,
	} {
		for _, end := range []string{"commit", "rollback"} {
			t.Run(end+" "+sql, func(t *testing.T) {
				t.Parallel()
				tx, _ := fenced(t)
				_, _ = tx.Exec(t.Context(), sql)
				if end == "commit" {
					_ = tx.Commit(5 * time.Second)
				}
				tx.Rollback(5 * time.Second)
				if tx.conn.IsClosed() != closes {
					t.Errorf("closed: %v", tx.conn.IsClosed())
				}
			})
		}
	}
}

// unchanged is a rewriter that leaves a statement as it is.
type unchanged struct{}

func (unchanged) RewriteQuery(_ context.Context, _ *pgx.Conn, sql string, args []any) (string, []any, error) {
	return sql, args, nil
}

// Options of pgx that a statement may have are heeded, and others are refused by name.
func TestOptionsOfPgx(t *testing.T) {
	exec := func(sql string, args ...any) func(tx *Tx) error {
		return func(tx *Tx) error { _, err := tx.Exec(t.Context(), sql, args...); return err }
	}
	scan := func(sql string, args ...any) func(tx *Tx) error {
		return func(tx *Tx) error {
			var n int
			if err := tx.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil || n != 7 {
				return errors.Join(err, errNo)
			}
			return nil
		}
	}
	batch := func(args ...any) func(tx *Tx) error {
		return func(tx *Tx) error {
			b := &pgx.Batch{}
			b.Queue(`select @n::int`, args...)
			return tx.SendBatch(t.Context(), b).Close()
		}
	}
	named := pgx.NamedArgs{"n": 7}
	for name, c := range map[string]struct {
		do      func(tx *Tx) error
		refused string
	}{
		"exec, mode":                     {exec(`select $1::int`, pgx.QueryExecModeExec, 7), ""},
		"exec, mode alone":               {exec(`select 7`, pgx.QueryExecModeExec), ""},
		"exec, mode and names":           {exec(`select @n::int`, pgx.QueryExecModeDescribeExec, named), ""},
		"exec, cached":                   {exec(`select $1::int`, pgx.QueryExecModeCacheDescribe, 7), ""},
		"exec, simple":                   {exec(`select $1::int`, pgx.QueryExecModeSimpleProtocol, 7), "QueryExecModeSimpleProtocol"},
		"exec, formats":                  {exec(`select $1::int`, pgx.QueryResultFormats{1}, 7), "pgx.QueryResultFormats in Exec"},
		"query, mode":                    {scan(`select $1::int`, pgx.QueryExecModeExec, int32(7)), ""},
		"query, mode alone":              {scan(`select 7`, pgx.QueryExecModeCacheStatement), ""},
		"query, formats":                 {scan(`select $1::int`, pgx.QueryResultFormats{0}, 7), ""},
		"query, formats by oid":          {scan(`select 7`, pgx.QueryResultFormatsByOID{23: 0}), ""},
		"query, mode, formats and names": {scan(`select @n::int`, pgx.QueryExecModeDescribeExec, pgx.QueryResultFormats{1}, named), ""},
		"query, names":                   {scan(`select @n::int`, named), ""},
		"query, rewriter and arguments":  {scan(`select $1::int`, unchanged{}, 7), ""},
		"query, simple":                  {scan(`select $1::int`, pgx.QueryExecModeSimpleProtocol, 7), "QueryExecModeSimpleProtocol"},
		"queue, names":                   {func(tx *Tx) error { tx.Queue(`select @n::int`, named); return tx.flush(t.Context()) }, ""},
		"queue, mode": {
			func(tx *Tx) error { tx.Queue(`select $1::int`, pgx.QueryExecModeExec, 7); return tx.failureErr() },
			"pgx.QueryExecMode in Queue",
		},
		"batch, names": {batch(named), ""},
		"batch, mode":  {batch(pgx.QueryExecModeExec, 7), "pgx.QueryExecMode in a batch"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tx, _ := fenced(t)
			tx.Queue(`insert into effects values ('before')`)
			err := c.do(tx)
			switch {
			case c.refused == "" && err != nil:
				t.Error(err)
			case c.refused != "" && (!errors.Is(err, ErrOption) || !strings.Contains(err.Error(), c.refused)):
				t.Errorf("%v", err)
			}
			if err := tx.Commit(5 * time.Second); (err == nil) != (c.refused == "") {
				t.Errorf("commit: %v", err)
			}
			tx.Rollback(5 * time.Second)
		})
	}
}

// Errors name the statement: its place among those of its turn, and how it begins; never its
// parameters.
func TestErrorsNameTheStatement(t *testing.T) {
	const bad = "insert into effects\n\tvalues   (1 / length($1))"
	const named = `(insert into effects values (1 / length($1)))`
	for name, c := range map[string]struct {
		do   func(ctx context.Context, h *Handle)
		want string
	}{
		"exec": {func(ctx context.Context, h *Handle) { _, _ = h.Exec(ctx, bad, "") }, "statement 3 of the handler " + named},
		"query": {
			func(ctx context.Context, h *Handle) { var n int; _ = h.QueryRow(ctx, bad, "").Scan(&n) },
			"statement 3 of the handler " + named,
		},
		"queued": {func(_ context.Context, h *Handle) { h.Queue(bad, ""); h.Queue(`select 1`) }, "statement 3 of the handler " + named},
		"arguments": {func(_ context.Context, h *Handle) {
			h.Queue(bad, struct{}{})
			h.Queue(`select 1`)
		},
			"statement 3 of the handler " + named},
		"behind a savepoint": {func(ctx context.Context, h *Handle) {
			_ = h.Savepoint(ctx, func() error { h.Queue(`select 1`); return nil })
			h.Queue(bad, "")
		}, "statement 4 of the handler " + named},
		"batch": {func(ctx context.Context, h *Handle) {
			b := &pgx.Batch{}
			b.Queue(`select 1`)
			b.Queue(bad, "")
			b.Queue(`select 2`)
			_ = h.SendBatch(ctx, b).Close()
		}, "statement 4 of the handler " + named},
		"copy": {func(ctx context.Context, h *Handle) {
			_, _ = h.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"w"}, pgx.CopyFromRows([][]any{{"a"}}))
		}, `statement 3 of the handler (copy "effects")`},
		"control": {
			func(ctx context.Context, h *Handle) { _, _ = h.Exec(ctx, "commit") },
			"statement 3 of the handler (commit): transaction control",
		},
		"long": {func(ctx context.Context, h *Handle) { _, _ = h.Exec(ctx, `select `+strings.Repeat("x", 100)) },
			`statement 3 of the handler (select ` + strings.Repeat("x", 73) + `...)`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tx, _ := fenced(t)
			tx.Queue(`insert into effects values ('a neighbour')`)
			tx.TakeBack()
			h := tx.Lend(nil)
			h.Queue(`insert into effects values ('first')`)
			if _, err := h.Exec(t.Context(), `insert into effects values ($1)`, "second"); err != nil {
				t.Fatal(err)
			}
			c.do(t.Context(), h)
			tx.TakeBack()
			tx.Lend(nil).Queue(`insert into effects values ('the next one')`)
			err := tx.Commit(5 * time.Second)
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("%v\nwant %s", err, c.want)
			}
			tx.Rollback(5 * time.Second)
		})
	}
}
