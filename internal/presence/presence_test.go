package presence_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/presence"
	"github.com/onlyonce/onlyonce/internal/primary"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// S3: a part is seen while it runs, with what keeps it from its work; when that is over it is gone;
// a part that stops in order leaves nothing; and rows that dead ones left go after a day.
func TestS3Presence(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	until := func(what, sql string) {
		t.Helper()
		pgtest.Until(t, pgtest.Patience(time.Minute), what, func() (is bool) {
			if err := pool.QueryRow(t.Context(), sql).Scan(&is); err != nil {
				t.Fatal(err)
			}
			return is
		})
	}
	for _, dead := range []string{
		"('relay', 'payments', '25 h')",
		"('relay', 'payments', '23 h')",
		"('relay', 'other', '25 h')",
		"('receiver', 'payments', '25 h')",
	} {
		exec(`insert into onlyonce.owners (id, part, scope, host, pid, seen_at, partitions)
		      select gen_random_uuid(), d.part, d.scope, 'dead', 1, clock_timestamp() - d.age::interval, '[]'
		      from (values ` + dead + `) d(part, scope, age)`)
	}
	var away atomic.Pointer[time.Time]
	r := &presence.Reporter{
		Pool:   primary.Of(pool, slog.Default()),
		Part:   presence.Relay,
		Scopes: []string{"payments", "mail"},
		Faults: func(scope string) []presence.Fault {
			if since := away.Load(); since != nil && scope == "payments" {
				return presence.Since("remote", *since, errors.New("status 500"))
			}
			return nil
		},
		Logger: slog.Default(),
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		r.Run(ctx)
		close(ended)
	}()
	until("both sinks are seen",
		`select count(*) = 2 and bool_and(faults = '[]') from onlyonce.owners where part = 'relay' and host <> 'dead'`)
	until("what dead ones left for a day is gone, and nothing else", `select count(*) = 3 from onlyonce.owners where host = 'dead'`)
	since := time.Now().Add(-time.Hour)
	away.Store(&since)
	until(
		"the fault is seen",
		`select count(*) = 1 from onlyonce.owners
			where scope = 'payments' and faults->0->>'kind' = 'remote' and faults->0->>'text' = 'status 500'
	                              and (faults->0->>'for')::float8 between 3600 and 7200`,
	)
	away.Store(nil)
	until("the fault is over", `select bool_and(faults = '[]') from onlyonce.owners where host <> 'dead'`)
	stop()
	<-ended
	until("a part that stops in order leaves nothing", `select count(*) = 0 from onlyonce.owners where host <> 'dead'`)
}
