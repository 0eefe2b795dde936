package intake_test

import (
	"context"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/intake"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// W11: the work runs again after a serialization failure, if its connection was lost, and if the
// stream has to be made, five times at most. Any other error is final, and so is the end of ctx.
func TestW11WorkRunsAgain(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	raise := func(state string) string {
		return "do $$ begin raise exception 'refused' using errcode = '" + state + "'; end $$"
	}
	const cut = "select pg_terminate_backend(pg_backend_pid())"
	for _, c := range []struct {
		name  string
		sql   string
		fails int // runs in which sql is sent
		cut   bool
		runs  int
		ok    bool
	}{
		{"nothing fails", "", 0, false, 1, true},
		{"serialization failure", raise("40001"), 2, false, 3, true},
		{"deadlock, each time", raise("40P01"), 9, false, 5, false},
		{"lost connection", cut, 1, false, 2, true},
		{"no stream", raise("OO009"), 1, false, 2, true},
		{"another error", raise("23514"), 1, false, 1, false},
		{"serialization failure after ctx has ended", raise("40001"), 9, true, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			n := intake.New(intake.Intake{Pool: primary.Of(pool, nil), Topic: "orders", Partitions: 1, CommitTimeout: time.Minute})
			runs := 0
			end := n.Run(ctx, func(_ context.Context, tx *guard.Tx) (bool, error) {
				runs++
				intake.Begin(tx, time.Minute, time.Minute)
				if runs <= c.fails {
					tx.Engine("test", c.sql)
				}
				if c.cut {
					cancel()
				}
				return true, nil
			})
			if runs != c.runs || (end.Err == nil) != c.ok {
				t.Errorf("%d runs, %v; want %d runs, success %v", runs, end.Err, c.runs, c.ok)
			}
		})
	}
}
