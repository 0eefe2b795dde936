package guard

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var errNo = errors.New("no")

type cancelKey struct{}

// What a savepoint undoes is undone, sent or queued; what came before it, sent or queued, stays,
// and so does what follows.
func TestSavepointUndoesItsOwnAndNothingElse(t *testing.T) {
	t.Parallel()
	tx, other := fenced(t)
	ctx := t.Context()
	tx.Queue(`insert into effects values ('before')`)
	err := tx.Savepoint(ctx, func() error {
		if _, err := tx.Exec(ctx, `insert into effects values ('undone')`); err != nil {
			return err
		}
		tx.Queue(`insert into effects values ('undone, queued')`)
		return errNo
	})
	if !errors.Is(err, errNo) || tx.Failure() != nil {
		t.Fatalf("%v, %v", err, tx.Failure())
	}
	err = tx.Savepoint(ctx, func() error {
		tx.Queue(`insert into effects values ('kept')`)
		inner := tx.Savepoint(ctx, func() error {
			tx.Queue(`insert into effects values ('undone inside')`)
			_, err := tx.Query(ctx, `select v from effects`) // and left open
			return errors.Join(errNo, err)
		})
		if !errors.Is(inner, errNo) {
			return errors.New("the inner one was forgiven without a word")
		}
		tx.Queue(`insert into effects values ('kept, behind the inner one')`)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	tx.Queue(`insert into effects values ('after')`)
	if err := tx.Commit(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	all := count(
		t,
		other,
		`select count(*) from effects`,
	)
	kept := count(t, other, `select count(*) from effects where v in ('before', 'kept', 'kept, behind the inner one', 'after')`)
	if all != 4 ||
		kept != 4 {
		t.Errorf("%d effects, %d of those that stay; want 4 of each", all, kept)
	}
}

// A statement that fails inside, swallowed or not, sent or queued, is undone and forgiven.
func TestSavepointForgivesStatements(t *testing.T) {
	t.Parallel()
	tx, other := fenced(t)
	ctx := t.Context()
	const twice = `insert into once values (1)`
	if _, err := tx.Exec(ctx, `create table once (id int primary key)`); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, twice); err != nil {
		t.Fatal(err)
	}
	for name, fn := range map[string]func() error{
		"returned":  func() error { _, err := tx.Exec(ctx, twice); return err },
		"swallowed": func() error { _, _ = tx.Exec(ctx, twice); return nil },
		"queued":    func() error { tx.Queue(twice); return nil },
		"query":     func() error { var n int; return tx.QueryRow(ctx, twice+` returning id`).Scan(&n) },
		"batch": func() error {
			b := &pgx.Batch{}
			b.Queue(twice)
			return tx.SendBatch(ctx, b).Close()
		},
		"copy": func() error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"once"}, []string{"id"}, pgx.CopyFromRows([][]any{{1}}))
			return err
		},
	} {
		err := tx.Savepoint(ctx, func() error {
			tx.Queue(`insert into effects values ('undone')`)
			return fn()
		})
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "23505" || tx.Failure() != nil {
			t.Fatalf("%s: %v, %v", name, err, tx.Failure())
		}
	}
	for name, fn := range map[string]func() error{
		"syntax":    func() error { _, err := tx.Exec(ctx, `selec 1`); return err },
		"no table":  func() error { _, err := tx.Exec(ctx, `select * from nowhere`); return err },
		"arguments": func() error { _, err := tx.Exec(ctx, `insert into once values ($1)`, struct{}{}); return err },
	} {
		if err := tx.Savepoint(ctx, fn); err == nil || tx.Failure() != nil {
			t.Fatalf("%s: %v, %v", name, err, tx.Failure())
		}
	}
	if err := tx.Commit(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	if n := count(t, other, `select count(*) from effects`); n != 0 {
		t.Errorf("%d effects", n)
	}
}

// A panic inside undoes too: whoever recovers it would otherwise commit half of what fn was to do.
func TestSavepointUndoesWhatPanics(t *testing.T) {
	t.Parallel()
	tx, other := fenced(t)
	ctx := t.Context()
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = tx.Savepoint(ctx, func() error {
			if _, err := tx.Exec(ctx, `insert into effects values ('half')`); err != nil {
				return err
			}
			panic("kaboom")
		})
	}()
	if _, err := tx.Exec(ctx, `insert into effects values ('after')`); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	if all := count(t, other, `select count(*) from effects`); all != 1 ||
		count(t, other, `select count(*) from effects where v = 'after'`) != 1 {
		t.Errorf("%d effects, want the one behind the savepoint", all)
	}
}

// T6, T7: what breaks the transaction, and what asks for it to be run again, is not forgiven.
func TestT7SavepointDoesNotForgive(t *testing.T) {
	raise := func(code string) string {
		return `do $$ begin raise exception using errcode = '` + code + `', message = 'as if'; end $$`
	}
	for name, fn := range map[string]func(ctx context.Context, tx *Tx) error{
		"commit":        func(ctx context.Context, tx *Tx) error { _, err := tx.Exec(ctx, "commit"); return err },
		"rollback":      func(_ context.Context, tx *Tx) error { tx.Queue("rollback to onlyonce_1"); return nil },
		"ended":         func(_ context.Context, tx *Tx) error { tx.Engine("", "rollback"); return nil },
		"serialization": func(ctx context.Context, tx *Tx) error { _, err := tx.Exec(ctx, raise("40001")); return err },
		"deadlock":      func(_ context.Context, tx *Tx) error { tx.Queue(raise("40P01")); return nil },
		"connection lost": func(ctx context.Context, tx *Tx) error {
			_, err := tx.Exec(ctx, `select pg_terminate_backend(pg_backend_pid())`)
			return err
		},
		"context ended": func(ctx context.Context, tx *Tx) error {
			ctx.Value(cancelKey{}).(context.CancelFunc)()
			return nil
		},
		"open rows": func(ctx context.Context, tx *Tx) error {
			_, _ = tx.Query(ctx, `select 1`)
			_, _ = tx.Exec(ctx, `select 1`)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tx, other := fenced(t)
			tx.Queue(`insert into effects values ('before')`)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ctx = context.WithValue(ctx, cancelKey{}, cancel)
			if err := tx.Savepoint(ctx, func() error { return fn(ctx, tx) }); err == nil {
				t.Error("no error")
			}
			if tx.Failure() == nil {
				t.Error("forgiven")
			}
			if _, err := tx.Exec(t.Context(), `insert into effects values ('after')`); err == nil {
				t.Error("the transaction goes on")
			}
			if err := tx.Commit(5 * time.Second); err == nil || tx.Committed() {
				t.Error("committed")
			}
			tx.Rollback(5 * time.Second)
			if n := count(t, other, `select count(*) from effects`); n != 0 {
				t.Errorf("%d effects", n)
			}
		})
	}
}

// T7: a backend remembers 64 subtransactions; beyond, every snapshot of the server pays.
func TestT7SixtySavepoints(t *testing.T) {
	t.Parallel()
	tx, other := fenced(t)
	for i := range 60 {
		err := tx.Savepoint(t.Context(), func() error {
			tx.Queue(`insert into effects values ($1)`, "a")
			if i%2 == 0 {
				return errNo
			}
			return nil
		})
		if (err != nil) != (i%2 == 0) {
			t.Fatal(i, err)
		}
	}
	called := false
	if err := tx.Savepoint(t.Context(), func() error { called = true; return nil }); !errors.Is(err, ErrSavepoints) || called {
		t.Errorf("the 61st: %v, called: %v", err, called)
	}
	if err := tx.Commit(5 * time.Second); !errors.Is(err, ErrSavepoints) {
		t.Errorf("committed: %v", err)
	}
	tx.Rollback(5 * time.Second)
	if n := count(t, other, `select count(*) from effects`); n != 0 {
		t.Errorf("%d effects", n)
	}
}

// What a savepoint undoes may be marked again, and what came before it not.
func TestSavepointTakesMarksBack(t *testing.T) {
	t.Parallel()
	tx, _ := fenced(t)
	before := [16]byte{1}
	inside := [16]byte{2}
	tx.FirstUse(before)
	_ = tx.Savepoint(t.Context(), func() error {
		if !tx.FirstUse(inside) || tx.FirstUse(before) {
			t.Error("marks do not reach into the savepoint")
		}
		return errNo
	})
	if !tx.FirstUse(inside) || tx.FirstUse(before) {
		t.Error("marks are not what they were before the savepoint")
	}
	tx.Rollback(5 * time.Second)
}

// Whatever fails in a hook fails as the hook's: not as a statement of the handler's.
func TestHookFailsAsTheHook(t *testing.T) {
	bad := `insert into effects values (1 / length(''))`
	for name, fn := range map[string]func(ctx context.Context, tx *Tx) error{
		"error":     func(context.Context, *Tx) error { return errNo },
		"exec":      func(ctx context.Context, tx *Tx) error { _, err := tx.Exec(ctx, bad); return err },
		"swallowed": func(ctx context.Context, tx *Tx) error { _, _ = tx.Exec(ctx, bad); return nil },
		"queued":    func(_ context.Context, tx *Tx) error { tx.Queue(bad); return nil },
		"query":     func(ctx context.Context, tx *Tx) error { _, err := tx.Query(ctx, bad+` returning 1`); return err },
		"arguments": func(_ context.Context, tx *Tx) error {
			tx.Queue(`insert into effects values ($1)`, struct{}{})
			return nil
		},
		"batch": func(ctx context.Context, tx *Tx) error {
			b := &pgx.Batch{}
			b.Queue(bad)
			return tx.SendBatch(ctx, b).Close()
		},
		"batch, arguments": func(ctx context.Context, tx *Tx) error {
			b := &pgx.Batch{}
			b.Queue(`insert into effects values ($1)`, struct{}{})
			return tx.SendBatch(ctx, b).Close()
		},
		"copy": func(ctx context.Context, tx *Tx) error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"nothing"}, pgx.CopyFromRows([][]any{{1}}))
			return err
		},
		"savepoints": func(ctx context.Context, tx *Tx) error {
			for range 61 {
				_ = tx.Savepoint(ctx, func() error { return nil })
			}
			return nil
		},
		"commit": func(ctx context.Context, tx *Tx) error { _, _ = tx.Exec(ctx, "commit"); return nil },
		"rollback": func(_ context.Context, tx *Tx) error {
			tx.Engine(stepHook, "rollback")
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tx, _ := fenced(t)
			_ = tx.Hook(func(*Handle) error { return fn(t.Context(), tx) })
			_, _ = tx.Exec(t.Context(), `select 1`)
			if f := tx.Failure(); f == nil || f.Step != stepHook {
				t.Errorf("failure: %v", f)
			}
			tx.Rollback(5 * time.Second)
		})
	}
	t.Run("rows left open", func(t *testing.T) {
		t.Parallel()
		tx, _ := fenced(t)
		_ = tx.Hook(func(*Handle) error { _, err := tx.Query(t.Context(), `select generate_series(1, 1000)`); return err })
		tx.Queue(`select 1`)
		if err := tx.Commit(5 * time.Second); err != nil {
			t.Error(err)
		}
	})
}

// A connection that is cut under a handler rolls back at the server, and the handler's further
// statements are refused.
func TestAbandonedTransactionIsRolledBack(t *testing.T) {
	t.Parallel()
	tx, other := fenced(t)
	var pid int
	if err := tx.QueryRow(t.Context(), `select pg_backend_pid()`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `insert into effects values ('a')`); err != nil {
		t.Fatal(err)
	}
	inside := make(chan struct{})
	left := make(chan struct{})
	go func() { // the handler
		defer close(left)
		close(inside)
		// Not even looking at its context.
		_, err := tx.Exec(context.Background(), `select pg_sleep(60)`)
		if err == nil {
			t.Error("a statement went on behind the cut")
		}
		if _, err := tx.Exec(context.Background(), `select 1`); err == nil {
			t.Error("a statement was sent behind the cut")
		}
	}()
	<-inside
	for count(t, other, `select count(*) from pg_stat_activity where query like 'select pg_sleep%' and datname = current_database()`) == 0 {
		continue
	}
	tx.Abandon()
	<-left
	for count(t, other, `select count(*) from pg_stat_activity where datname = current_database()`) > 1 {
		continue
	}
	if n := count(t, other, `select count(*) from effects`); n != 0 {
		t.Errorf("%d effects", n)
	}
}

// What is kept for the end is written once, in its order, before the seal; what a savepoint undoes
// is not.
func TestLateIsWrittenOnceAndUndoneWithItsSavepoint(t *testing.T) {
	t.Parallel()
	tx, other := fenced(t)
	ctx := t.Context()
	writes := 0
	late := func(v string) error {
		return tx.BeforeCommit(v, func(items []any) (string, []any) {
			writes++
			all := make([]string, len(items))
			for i, it := range items {
				all[i] = it.(string)
			}
			return `insert into effects select v from unnest($1::text[]) with ordinality as u(v, n) order by n`, []any{all}
		})
	}
	if err := late("before"); err != nil {
		t.Fatal(err)
	}
	_ = tx.Savepoint(ctx, func() error {
		_ = late("undone")
		return errNo
	})
	if err := tx.Savepoint(ctx, func() error { return late("kept") }); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `select 1`); err != nil || writes != 0 {
		t.Fatalf("%v, written %d times before the end", err, writes)
	}
	if err := tx.Commit(5 * time.Second); err != nil || writes != 1 {
		t.Fatalf("%v, written %d times", err, writes)
	}
	if n := count(t, other, `select count(*) from effects where v in ('before', 'kept')`); n != 2 ||
		count(t, other, `select count(*) from effects`) != 2 {
		t.Errorf("%d effects", n)
	}
	if err := late("after"); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// T7: a savepoint that is gone back to stays, with what was noted when it was set.
func TestT7GoneBackToTwice(t *testing.T) {
	t.Parallel()
	tx, other := fenced(t)
	ctx := t.Context()
	before := [16]byte{1}
	within := [16]byte{2}
	if !tx.FirstUse(before) {
		t.Error("used before")
	}
	s, err := tx.Save(ctx)
	if err != nil {
		t.Fatal(err)
	}
	late := func(items []any) (string, []any) {
		return `insert into effects select unnest($1::text[])`, []any{fmt.Sprintf("{%d}", len(items))}
	}
	for range 3 {
		if !tx.FirstUse(within) || tx.FirstUse(before) {
			t.Error("the notes are not those of the savepoint")
		}
		if err := tx.BeforeCommit("late", late); err != nil {
			t.Fatal(err)
		}
		tx.Queue(`insert into effects values ('undone')`)
		if err := tx.Undo(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tx.Exec(ctx, `insert into effects values ('kept')`); err != nil {
		t.Fatal(err)
	}
	if err := tx.Release(ctx, s); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	if n := count(t, other, `select count(*) from effects`); n != 1 {
		t.Errorf("%d effects", n)
	}
}

// T7: a savepoint that is not open any more, or lies outside of a function's, cannot be ended: the
// transaction has failed for good.
func TestT7SavepointThatIsNotOpen(t *testing.T) {
	t.Parallel()
	ends := map[string]func(ctx context.Context, h *Handle, s *Saved) error{
		"undo":    func(ctx context.Context, h *Handle, s *Saved) error { return h.Undo(ctx, s) },
		"release": func(ctx context.Context, h *Handle, s *Saved) error { return h.Release(ctx, s) },
	}
	for name, end := range ends {
		t.Run(name+" of one that was released", func(t *testing.T) {
			t.Parallel()
			tx, _ := fenced(t)
			s := saved(t, tx)
			if err := tx.Release(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			wantForked(t, tx, end(t.Context(), tx.Handle, s))
		})
		t.Run(name+" beyond a function", func(t *testing.T) {
			t.Parallel()
			tx, _ := fenced(t)
			s := saved(t, tx)
			var inner error
			_ = tx.Savepoint(t.Context(), func() error {
				inner = end(t.Context(), tx.Handle, s)
				return inner
			})
			wantForked(t, tx, inner)
		})
	}
}

func saved(t *testing.T, tx *Tx) *Saved {
	t.Helper()
	s, err := tx.Save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func wantForked(t *testing.T, tx *Tx, err error) {
	t.Helper()
	if !errors.Is(err, ErrForked) {
		t.Errorf("it is answered with: %v", err)
	}
	if err := tx.Commit(5 * time.Second); !errors.Is(err, ErrForked) {
		t.Errorf("commit: %v", err)
	}
}
