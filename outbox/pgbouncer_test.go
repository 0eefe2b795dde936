package outbox_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// Through PgBouncer in transaction mode, with fewer server connections than clients, relays work as
// usual: they pick, settle in three ways, hand over. Both of pgx's modes that name no prepared
// statement.
func TestRelayBehindPgBouncer(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"exec", "cache_describe"} {
		t.Run(mode, func(t *testing.T) {
			direct := newRig(t)
			bouncer := pgtest.PgBouncer(t, direct.pool.Config().ConnString(), 2)
			r := &rig{t: t, pool: pgtest.Pool(t, bouncer.Mode(mode)+"&pool_max_conns=8")}
			var calls []outbox.Call
			for i := range 60 {
				calls = append(calls, charge(fmt.Sprint(i)))
			}
			r.enqueue(calls...)
			var mu sync.Mutex
			tries := map[string]int{}
			sink := newScripted(func(_ context.Context, a *outbox.Attempt) outbox.Result {
				mu.Lock()
				tries[a.Key]++
				n := tries[a.Key]
				mu.Unlock()
				switch {
				case a.ID%5 == 0 && n == 1:
					return outbox.Failure("not now", nil)
				case a.ID%7 == 0:
					return outbox.Result{Outcome: outbox.Rejected, Reason: "never"}
				}
				return outbox.Result{Outcome: outbox.Delivered}
			})
			cfg := testConfig(sink)
			first := r.start(cfg)
			second := r.start(cfg)
			r.states("delivered", "waiting")
			first.stop() // and the other takes over
			r.enqueue(charge("later"))
			r.states("delivered", "waiting")
			second.stop()

			delivered := one[int](
				direct,
				`select count(*) from onlyonce.calls where state = 'delivered'`,
			)
			parked := one[int](direct, `select count(*) from onlyonce.calls where state = 'waiting'`)
			want := one[int](direct, `select count(*) from onlyonce.calls where id % 7 = 0`)
			if parked != want || delivered != len(calls)+1-want {
				t.Errorf("%d delivered and %d parked of %d, want %d parked", delivered, parked, len(calls)+1, want)
			}
			for key, n := range tries {
				id := one[int64](direct, `select id from onlyonce.calls where key = $1::text::uuid`,
					key)
				wrong := (id%5 == 0 && id%7 != 0 && n != 2) || (id%5 != 0 && n != 1)
				if wrong {
					t.Errorf("row %d was tried %d times", id, n)
				}
			}
			leftInSessions(t, bouncer.Exec(), direct.pool)
		})
	}
}

// A relay whose server connections are terminated loses no row and settles each.
func TestRelayBehindPgBouncerLosesConnections(t *testing.T) {
	t.Parallel()
	direct := newRig(t)
	bouncer := pgtest.PgBouncer(t, direct.pool.Config().ConnString(), 2)
	r := &rig{t: t, pool: pgtest.Pool(t, bouncer.Exec())}
	written := 0
	work := func() {
		var calls []outbox.Call
		for range 200 {
			calls = append(calls, charge(fmt.Sprint(written)))
			written++
		}
		direct.enqueue(calls...)
	}
	work()
	sink := newScripted(accept)
	cfg := testConfig(sink)
	cfg.Concurrency = 4
	r.start(cfg)
	until(t, "the first call", func() bool { return len(sink.calls()) > 0 })
	kills := 0
	until(t, "ten server connections are terminated", func() bool {
		if one[int](direct, `select count(*) from onlyonce.calls where state = 'pending'`) == 0 {
			work()
		}
		kills += one[int](direct, `select count(*) filter (where pg_terminate_backend(pid)) from pg_stat_activity
			where datname = current_database() and pid <> pg_backend_pid() and state <> 'idle'`)
		return kills >= 10
	})
	direct.states("delivered") // a pooled client may still get a terminated connection
	if n := one[int](direct, `select count(*) from onlyonce.calls`); n != written {
		t.Errorf("%d calls are delivered, of %d", n, written)
	}
}

// leftInSessions compares a pooled server connection with a new one: the relay must leave no
// setting to the next client.
func leftInSessions(t *testing.T, pooled string, direct *pgxpool.Pool) {
	t.Helper()
	const settings = `
  select format(
    '%s %s %s %s, %s statements, %s advisory locks',
    current_setting('lock_timeout'),
    current_setting('statement_timeout'),
    current_setting('idle_in_transaction_session_timeout'),
    current_setting('synchronous_commit'),
    (select count(*) from pg_prepared_statements where name <> ''),
    (select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory')
  )`
	fresh, err := pgx.Connect(t.Context(), direct.Config().ConnString()+"&default_query_exec_mode=exec")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = fresh.Close(context.Background()) }()
	var want string
	if err := fresh.QueryRow(t.Context(), settings).Scan(&want); err != nil {
		t.Fatal(err)
	}
	var open []pgx.Tx // two transactions at once have both server connections
	for range 2 {
		conn, err := pgx.Connect(t.Context(), pooled)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(context.Background()) }()
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, tx)
		var got string
		if err := tx.QueryRow(t.Context(), settings).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("a session that was used has %q, a new one %q", got, want)
		}
	}
	for _, tx := range open {
		_ = tx.Rollback(t.Context())
	}
}
