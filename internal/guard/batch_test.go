package guard

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// T3: what a user's batch could not do is told by Close, as pgx does, and what was not sent is
// never committed around.
func TestT3BatchThatDidNotRunIsNoSuccess(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		ended   bool // the context has
		fill    func(*pgx.Batch)
		commits bool // it is only the caller's own code that failed: the statements have run
	}{
		{"context has ended", true, func(b *pgx.Batch) { b.Queue(`insert into effects values ($1)`, "a") }, false},
		{"arguments are missing", false, func(b *pgx.Batch) {
			b.Queue(`insert into effects values (@v)`, pgx.StrictNamedArgs{})
		}, false},
		{"callback fails", false, func(b *pgx.Batch) {
			b.Queue(`select 1`).QueryRow(func(pgx.Row) error { return errNo })
		}, true},
		{"no rows", false, func(b *pgx.Batch) {
			var n int
			b.Queue(`select 1 where false`).QueryRow(func(r pgx.Row) error { return r.Scan(&n) })
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			tx, other := fenced(t)
			if _, err := tx.Exec(t.Context(), `insert into effects values ($1)`, "earlier"); err != nil {
				t.Fatal(err)
			}
			b := &pgx.Batch{}
			test.fill(b)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if test.ended {
				cancel()
			}
			if err := tx.SendBatch(ctx, b).Close(); err == nil {
				t.Error("Close returned nil")
			} else if test.name == "callback fails" && !errors.Is(err, errNo) {
				t.Errorf("%v, want the callback's error", err)
			}
			err := tx.Commit(5 * time.Second)
			tx.Rollback(time.Second)
			if (err == nil) != test.commits {
				t.Errorf("Commit: %v; %d effects", err, count(t, other, `select count(*) from effects`))
			}
		})
	}
}
