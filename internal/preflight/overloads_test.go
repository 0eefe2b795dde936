package preflight_test

import (
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/inbox"
	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// trapsSQL makes, in public, an overload with exact types of each function and operator of
// PostgreSQL that is polymorphic, for the types that our tables and statements have. PostgreSQL
// prefers it wherever public is in the search_path. Each raises an error when it is called. Their
// results have the right types, because pgx prepares statements before the transaction that pins
// its search_path begins: a result of another type makes them fail, and does not make them run.
const trapsSQL = `
do $traps$
declare
  x record; t regtype; args text; tail int; n int := 0; l text; r text; result text;
begin
  perform pg_catalog.set_config('search_path', 'pg_catalog', true);
  foreach t in array array['text', 'uuid', 'bigint', 'integer', 'smallint', 'boolean', 'bytea', 'timestamptz', 'interval', 'xid8',
  'float8', 'numeric', 'name', 'jsonb', 'oid', 'regclass', 'char']::regtype[] loop
    for x in
    select p.proname, p.proretset, format_type(p.prorettype, null) as result, p.provariadic = '"any"'::regtype as variadic,
    array(select format_type(a, null) from unnest(p.proargtypes) with ordinality u(a, i) order by i) as types
               from pg_proc p
               where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind = 'f'
               and p.prorettype <> all (array['record', 'internal', 'cstring', 'anyenum', 'anyrange', 'anymultirange',
               'anycompatiblerange', 'anycompatiblemultirange', 'trigger']::regtype[]::oid[])
               and p.pronargs > 0
                and p.proargtypes::oid[] && array['anyelement', 'anyarray', 'anynonarray', '"any"', 'anycompatible', 'anycompatiblearray',
                'anycompatiblenonarray']::regtype[]::oid[]
                and not p.proargtypes::oid[] && array['internal', 'cstring', 'anyenum', 'anyrange', 'anymultirange', 'anycompatiblerange',
                'anycompatiblemultirange']::regtype[]::oid[] loop
      for tail in 1 .. case when x.variadic then 3 else 1 end loop
        select string_agg(case when a in ('anyarray', 'anycompatiblearray') then t::text || '[]' when a like 'any%' or a = '"any"'
        then t::text else a end,
        ', '
        order by i) into args
          from unnest(x.types || array_fill('"any"'::text, array[tail - 1])) with ordinality u(a, i);
        result := case when x.proretset then 'setof ' else '' end || case when x.result in ('anyarray', 'anycompatiblearray')
        then t::text || '[]' when x.result like 'any%' then t::text else x.result end;
        execute format('create or replace function public.%I(%s) returns %s language plpgsql as $b$
          begin raise exception ''trap %1$s''; end $b$',
          x.proname, args, result);
        n := n + 1;
      end loop;
    end loop;
    for x in
    select o.oprname, format_type(o.oprresult, null) as result, format_type(o.oprleft, null) as l, format_type(o.oprright, null) as r
    from pg_operator o
              where o.oprnamespace = 'pg_catalog'::regnamespace and o.oprleft <> 0
              and format_type(o.oprleft, null) || format_type(o.oprright,
              null) ~ '^any|any(array|nonarray|compatible|compatiblearray|element)$'
                and not format_type(o.oprleft, null) || format_type(o.oprright, null) ~ 'range|enum' loop
      l := case when x.l ~ '^any.*array$' and x.l !~ 'nonarray' then t::text || '[]' when x.l ~ '^any' then t::text else x.l end;
      r := case when x.r ~ '^any.*array$' and x.r !~ 'nonarray' then t::text || '[]' when x.r ~ '^any' then t::text else x.r end;
      result := case when x.result ~ '^any.*array$' and x.result !~ 'nonarray' then t::text || '[]' when x.result ~ '^any' then t::text
      else x.result end;
      n := n + 1;
      execute format('create function public.trap_%s(%s, %s) returns %s language plpgsql as $b$
        begin raise exception ''trap %%'', %5$L; end $b$',
        n, l, r, result, x.oprname);
      begin
        execute format('create operator public.%s (leftarg = %s, rightarg = %s, function = public.trap_%s)', x.oprname, l, r, n);
      exception when duplicate_function then null; -- of another polymorphic one
      end;
    end loop;
  end loop;
  -- Some of no exact types.
  create function public.trap_times(bigint, interval) returns interval language plpgsql as $b$ begin raise exception 'trap *'; end $b$;
  create operator public.* (leftarg = bigint, rightarg = interval, function = public.trap_times);
  create function public.trap_by(interval, integer) returns interval language plpgsql as $b$ begin raise exception 'trap /'; end $b$;
  create operator public./ (leftarg = interval, rightarg = integer, function = public.trap_by);
  if n < 700 then
    raise exception '% traps are too few', n;
  end if;
end $traps$`

// S2: what runs as migrator, relay, rotator or operator, and docs/roles.sql itself, calls no
// function or operator that another login has made, although public is in its search_path.
func TestS2OverloadsOfOthersDoNotRun(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.exec(`create role rot login in role onlyonce_relay, onlyonce_rotator, onlyonce_app`)
	c.exec(trapsSQL)
	if _, err := c.super.Exec(t.Context(), `select cardinality(array[1::bigint])`); err == nil ||
		!strings.Contains(err.Error(), "trap cardinality") {
		t.Fatalf("there are no traps: %v", err)
	}
	c.runFile()

	// The migrator.
	c.exec(`create database fresh`)
	fresh := &cluster{t: t, super: pgtest.Pool(t, strings.Replace(c.super.Config().ConnString(), "/shop?", "/fresh?", 1))}
	fresh.exec(trapsSQL)
	fresh.runFile()
	conn, err := fresh.as("deploy").Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := migrations.Apply(t.Context(), conn.Conn()); err != nil {
		t.Errorf("migrating: %v", err)
	}
	fresh.runFile()

	// A relay. Its database has calls that are delivered, fail, are rejected, wait for a rate, and
	// wait for each other.
	app := pgtest.Pool(t, c.url("stock")+"&search_path=pg_catalog")
	for _, id := range []string{"fine", "again", "never", "fine 2", "again 2", "fine 3"} {
		name, _, _ := strings.Cut(id, " ")
		err := pgx.BeginFunc(t.Context(), app, func(tx pgx.Tx) error {
			return outbox.Enqueue(t.Context(), tx, outbox.Call{
				Sink:        "payments",
				Name:        name,
				ID:          id,
				Scope:       "checkout",
				Tenant:      "acme",
				OrderingKey: name + ":1",
				Target:      "/",
				Capture:     name == "fine",
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	var failed []error
	relay, err := outbox.NewRelay(c.as("rot"), outbox.RelayConfig{
		Sinks:        []outbox.Sink{sink{}},
		PollInterval: 10 * time.Millisecond,
		Backoff:      dedupe.Backoff{Min: time.Millisecond, Max: time.Millisecond},
		Rates: []outbox.Rate{
			{Sink: "payments", PerSecond: 100, InFlight: 4},
			{Sink: "payments", Tenant: "acme", PerSecond: 2},
			{Sink: "payments", OrderingKeyPrefix: "again:", PerSecond: 50},
		},
		Complete: func(context.Context, dedupe.GuardedTx, *outbox.Attempt, *outbox.Response) error { return nil },
		Hooks: outbox.Hooks{
			Settled: func(s outbox.SettledEvent) { t.Logf("%s: %s %s", s.Name, s.State, s.Reason) },
			TransactionFailed: func(f outbox.TransactionFailedEvent) {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, f.Err)
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := false
	stop := c.runs(func(ctx context.Context) error {
		err := relay.Run(ctx)
		mu.Lock()
		defer mu.Unlock()
		ended = true
		return err
	})
	c.until("all calls are settled or wait for an operator", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(failed) > 0 ||
			ended ||
			c.count(`select count(*) from onlyonce.calls where state = 'delivered'`) == 5 &&
				c.count(`select count(*) from onlyonce.parked where state = 'waiting'`) == 1
	})
	stop()
	for _, err := range failed {
		t.Errorf("relay: %v", err)
	}

	// Rotators, until each ring has come around, and what builds filters.
	rot := c.as("rot")
	for _, which := range append(ring.Keys(), ring.Outbox(), ring.Events()) {
		c.exec(fmt.Sprintf(`update onlyonce.rings set horizon = '1 s' where name = '%s' and horizon is not null`, which.Name))
		x, err := ring.New(rot, which, ring.Config{MaxBytes: 1, MaxAge: time.Second, Retention: time.Second, Hooks: ring.Hooks{}})
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			if _, err := x.Step(t.Context()); err != nil {
				t.Errorf("rotating %s: %v", which.Name, err)
				break
			}
		}
		if err := x.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for _, which := range ring.Keys() {
		if _, err := inbox.NewBuilder(rot, which, slog.Default()).Step(t.Context()); err != nil {
			t.Errorf("building filters of %s: %v", which.Name, err)
		}
	}

	// The command, as an operator.
	c.exec(`insert into onlyonce.parked (kind, state, reason, scope, key, topic, partition, "offset", body, next_attempt_at)
		select 'message', 'waiting', 'failed', 's', pg_catalog.gen_random_uuid(), 'orders', 0, i, '{}', null
		from pg_catalog.generate_series(1, 3) i`)
	program := filepath.Join(t.TempDir(), "onlyonce")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../cmd/onlyonce").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, args := range []string{
		"status", "doctor", "parked list", "parked show 1", "outbox status",
		"outbox list -sink payments", "inbox status", "events status", "explain 0 -scope stock",
		"request list", "operation list",
		"cursor adopt -scope new -topic orders -partition 0 -at 4 -reason test -yes",
		"cursor show -scope new -topic orders -partition 0",
		"replay -scope new -topic orders -partition 0 -from 1 -to 3 -reason test -yes",
		"parked discard -scope s -topic orders -reason test -yes",
		"outbox rate -sink payments -per-second 5 -reason test -yes",
		"outbox pause -sink payments -reason test -yes",
		"inbox horizon -ring standard_keys -horizon 240h -reason test -yes",
		"outbox rebase -reason test -yes",
	} {
		out, err := exec.CommandContext(t.Context(), program, append(strings.Fields(args), "-postgres", c.url("ops"))...).CombinedOutput()
		if err != nil && (args != "doctor" || strings.Contains(string(out), "SQLSTATE")) { // which finds something
			t.Errorf("onlyonce %s as operator: %v\n%s", args, err, out)
		}
	}
}
