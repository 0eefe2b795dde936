package retention_test

import (
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/retention"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func one[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// purge deletes what is old. Watched time is the clock's, as if processes had always watched.
func purge(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	exec(t, pool, `update onlyonce.watched set at = pg_catalog.clock_timestamp()`)
	looks(t, pool)
}

func looks(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	if err := retention.New(pool, nil, slog.New(slog.DiscardHandler)).Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// parks inserts a parked row. Its reason tells it from the others.
func parks(t *testing.T, pool *pgxpool.Pool, kind, state, name, settled string) {
	t.Helper()
	exec(
		t,
		pool,
		`insert into onlyonce.parked (kind, state, scope, reason, settled_at, parked_at) values ($1, $2, 'stock', $3,
		case when $4::text is not null then clock_timestamp() - $4::text::interval end, clock_timestamp() - interval '400 days')`,
		kind,
		state,
		name,
		orNull(settled),
	)
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

const reasons = `select coalesce(string_agg(reason, ' ' order by reason), '') from onlyonce.parked`

// D8: settled messages and events go when their retention has passed. Nothing else does.
func TestD8SettledRowsGo(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	parks(t, pool, "message", "resolved", "old", "31 days")
	parks(t, pool, "event", "discarded", "old-event", "400 days")
	parks(t, pool, "message", "resolved", "young", "29 days")
	parks(t, pool, "message", "waiting", "waiting", "")
	parks(t, pool, "event", "blocked", "blocked", "")
	parks(t, pool, "call", "resolved", "call", "400 days")
	purge(t, pool)
	if got := one[string](t, pool, reasons); got != "blocked call waiting young" {
		t.Errorf("left: %s", got)
	}
	exec(t, pool, `update onlyonce.retentions set keep = '1 day' where kind = 'parked'`)
	purge(t, pool)
	if got := one[string](t, pool, reasons); got != "blocked call waiting" {
		t.Errorf("left after a day: %s", got)
	}
	parks(t, pool, "message", "resolved", "ancient", "4000 days")
	exec(t, pool, `update onlyonce.retentions set keep = null`)
	purge(t, pool)
	if got := one[string](t, pool, reasons); got != "ancient blocked call waiting" {
		t.Errorf("left, although rows are kept for ever: %s", got)
	}
}

// T11: settled rows and audit rows stay if it is the clock that is ahead.
func TestT11SettledRowsStay(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	parks(t, pool, "message", "resolved", "young", "29 days")
	exec(t, pool, `insert into onlyonce.audit (at, action, reason) values (clock_timestamp() - interval '399 days', 'x', 'x')`)
	exec(t, pool, `insert into onlyonce.webhook_objects values ('s', gen_random_uuid(), 1, clock_timestamp() - interval '180 days')`)
	exec(t, pool, `update onlyonce.watched set at = clock_timestamp()`)
	pgtest.ShiftClock(t, pool)("5 days")
	looks(t, pool)
	if n := one[int](
		t,
		pool,
		`select (select count(*) from onlyonce.parked) + (select count(*) from onlyonce.audit) + (select count(*)
			from onlyonce.webhook_objects)`,
	); n != 3 {
		t.Errorf("%d of 3 rows are left", n)
	}
}

// T13: more rows than a portion go in several transactions.
func TestT13SettledRowsGoInPortions(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	exec(t, pool, `create table deletions (xid xid8)`)
	exec(
		t,
		pool,
		`create function noted() returns trigger language plpgsql as 'begin insert into deletions values (pg_current_xact_id()); `+
			`return null; end'`,
	)
	exec(t, pool, `create trigger noted after delete on onlyonce.parked for each row execute function noted()`)
	exec(
		t,
		pool,
		`insert into onlyonce.parked (kind, state, scope, reason, settled_at)
			select 'message', 'resolved', 'stock', 'x', now() - interval '400 days' from generate_series(1, 2500)`,
	)
	exec(t, pool, `alter function noted() set search_path = public`)
	purge(t, pool)
	if left := one[int](t, pool, `select count(*) from onlyonce.parked`); left != 0 {
		t.Errorf("%d rows are left", left)
	}
	if most := one[int](t, pool, `select max(n) from (select count(*) as n from deletions group by xid) x`); most != 1000 {
		t.Errorf("one transaction deleted %d rows", most)
	}
}

// S2: an audit row goes when its retention has passed, and cannot be deleted before.
func TestS2AuditRowsAreKept(t *testing.T) {
	t.Parallel()
	pool := pgtest.DB(t)
	exec(
		t,
		pool,
		`insert into onlyonce.audit (at, action, reason) select now() - x * interval '1 day', 'x', x::text from unnest(array[401, 399]) x`,
	)
	_, err := pool.Exec(t.Context(), `delete from onlyonce.audit where reason = '399'`)
	if guard.SQLState(err) != "42501" {
		t.Errorf("an audit row of 399 days was deleted: %v", err)
	}
	purge(t, pool)
	if got := one[string](t, pool, `select string_agg(reason, ' ') from onlyonce.audit`); got != "399" {
		t.Errorf("left: %s", got)
	}
	exec(t, pool, `update onlyonce.retentions set keep = null where kind = 'audit'`)
	if _, err := pool.Exec(t.Context(), `delete from onlyonce.audit`); guard.SQLState(err) != "42501" {
		t.Errorf("an audit row that is kept for ever was deleted: %v", err)
	}
}

// W21: an object that no event touched for its retention goes only if no older event of it can be
// handled any more.
func TestW21ObjectsGo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql  string
		gone bool
	}{
		"nothing else":                  {``, true},
		"touched within the retention":  {`update onlyonce.webhook_objects set changed_at = now() - interval '179 days'`, false},
		"kept for ever":                 {`update onlyonce.retentions set keep = null`, false},
		"ids are remembered for longer": {`update onlyonce.rings set horizon = '101 days'`, false},
		"of an endpoint's class": {
			`insert into onlyonce.horizons values ('webhook/e', 'long', 'standard', now());
				update onlyonce.rings set horizon = '101 days' where name = 'standard_long_keys'`,
			false,
		},
		"of a loop's class": {
			`insert into onlyonce.horizons values ('imports', 'long', 'standard', now());
				update onlyonce.rings set horizon = '101 days' where name = 'standard_long_keys'`,
			true,
		},
		"a parked event of the scope": {
			`insert into onlyonce.parked (kind, state, scope, reason) values ('event', 'waiting', 's', 'x')`,
			false,
		},
		"a settled event of the scope": {
			`insert into onlyonce.parked (kind, state, scope, reason, settled_at) values ('event', 'resolved', 's', 'x', now())`,
			true,
		},
		"a parked event of another scope": {
			`insert into onlyonce.parked (kind, state, scope, reason) values ('event', 'waiting', 'other', 'x')`,
			true,
		},
		"an old event in the log": {logged(`now() - interval '111 days'`), false},
		"young events in the log": {logged(`now() - interval '100 days'`), true},
		"an old log that is empty": {
			`update onlyonce.segments set opened_at = now() - interval '300 days' where ring = 'events' and slot = 0`,
			true,
		},
		"a consumer that is behind":        {cursor(`now() - interval '111 days'`), false},
		"a consumer that has said nothing": {cursor(`now()`) + `; delete from onlyonce.frontiers`, false},
		"a consumer that keeps up":         {cursor(`now()`), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.DB(t)
			exec(t, pool, `insert into onlyonce.webhook_objects values ('s', gen_random_uuid(), 2, now() - interval '200 days')`)
			if c.sql != "" {
				exec(t, pool, c.sql)
			}
			purge(t, pool)
			if gone := one[int](t, pool, `select count(*) from onlyonce.webhook_objects`) == 0; gone != c.gone {
				t.Errorf("gone: %v, want %v", gone, c.gone)
			}
		})
	}
}

// logged puts an event into the log, whose segment was opened at a time that follows.
func logged(opened string) string {
	return `with s as (insert into onlyonce.streams (topic, partitions) values ('t', 1) returning id),
	e as (insert into onlyonce.event_log (slot, stream, partition, "offset", tenant, id, header_names, header_values)
	select 0, s.id, 0, 0, '', 'x', '{}', '{}' from s)
	update onlyonce.segments set opened_at = case when slot = 0 then ` + opened + ` end where ring = 'events'`
}

// cursor makes a cursor of the scope with a frontier.
func cursor(frontier string) string {
	return `with l as (insert into onlyonce.leases (name) values ('cursor/s/t/0') returning id),
	c as (insert into onlyonce.cursors (id, scope, topic, partition, start_offset, start_policy, run_start, cluster_id)
	select l.id, 's', 't', 0, 0, 'earliest', 0, 'kafka' from l returning id, run)
	insert into onlyonce.frontiers (cursor_id, run, frontier) select c.id, c.run, ` + frontier + ` from c`
}
