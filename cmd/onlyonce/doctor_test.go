package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/test/devenv"
	"github.com/onlyonce/onlyonce/test/devenv/kafkatest"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// doctorReport is the result of doctor.
type doctorReport struct{ ops.Examination }

// examines runs doctor -json, which must fail or not.
func (f *fixture) examines(fails bool, args ...string) (r doctorReport) {
	f.t.Helper()
	status := statusGood
	if fails {
		status = statusFailed
	}
	out := f.run(append([]string{"doctor", "-json"}, args...)...)
	if err := json.Unmarshal([]byte(out.out), &r); err != nil || out.status != status {
		f.t.Fatalf("status %d, want %d: %s%s, %v", out.status, status, out.out, out.err, err)
	}
	r.remediesWork(f.t)
	return r
}

// has fails the test unless there is a finding of a check and level that contains each text, in its
// text or its remedy.
func (r doctorReport) has(t *testing.T, check, level string, texts ...string) {
	t.Helper()
	if !slices.ContainsFunc(r.Findings, func(f ops.Finding) bool {
		return f.Check == check &&
			f.Level == level &&
			!slices.ContainsFunc(texts, func(s string) bool { return !strings.Contains(f.Text+"\n"+f.Remedy, s) })
	}) {
		t.Errorf("there is no finding %s %s %q in %+v", check, level, texts, r.Findings)
	}
}

const (
	oldCurrent = `insert into onlyonce_segments.consumer_keys_0 values (gen_random_uuid(), 0);
		update onlyonce.segments set opened_at = now() - interval '25 hours' where ring = 'consumer_keys' and slot = 0;
		`
	rotates = `insert into onlyonce.leases (name, epoch, nonce, until)
		values ('ring/consumer_keys', 1, gen_random_uuid(), now() + interval '1 hour');
		`
	oneCursor = `with l as (insert into onlyonce.leases (name) values ('cursor/stock/orders/0') returning id)
		insert into onlyonce.cursors (id, scope, topic, partition, start_offset, start_policy, run_start)
		select id, 'stock', 'orders', 0, 0, 'earliest', 0 from l;
		`
)

// cursors makes n cursors, of partitions from 0 on, without a frontier.
func cursors(n int) string {
	return fmt.Sprintf(
		`with l as (insert into onlyonce.leases (name) select 'cursor/stock/orders/' || p from generate_series(0, %d - 1) p
			returning id, name)
		insert into onlyonce.cursors (id, scope, topic, partition, start_offset, start_policy, run_start)
		select id, 'stock', 'orders', split_part(name, '/', 4)::integer, 0, 'earliest', 0 from l; `,
		n,
	)
}

func frontier(ago string) string {
	return oneCursor + `insert into onlyonce.frontiers select id, 0, now() - interval '` + ago + `' from onlyonce.cursors; `
}

// Each finding that a database's contents can make.
func TestDoctorFindings(t *testing.T) {
	t.Parallel()
	plain := newFixture(t)
	const full = `update onlyonce.rings set cur = 9, closed = '{8,7,6,5,4,3,2,1,0}' where name = 'consumer_keys';
		insert into onlyonce_segments.consumer_keys_9 values (gen_random_uuid(), 0);
		update onlyonce.segments set opened_at = now() - interval '25 hours' where ring = 'consumer_keys' and slot = 9; `
	for name, c := range map[string]struct {
		setup        string
		args         []string
		check, level string
		want         []string
	}{
		"schema": {"", nil, "schema", "ok", []string{fmt.Sprintf("version %d", migrations.Latest)}},
		"schema of the next": {
			fmt.Sprintf(`insert into onlyonce.schema_version (version) values (%d)`, migrations.Latest+1),
			nil,
			"schema",
			"info",
			[]string{"newer than this program's", "deploy programs"},
		},
		"commit timestamps":   {"", nil, "server", "info", []string{"track_commit_timestamp is off"}},
		"idle in transaction": {"", nil, "server", "info", []string{"idle_in_transaction_session_timeout is 0"}},
		"asynchronous commit": {set("synchronous_commit", "off"), nil, "server", "warn", []string{"synchronous_commit is off"}},
		"isolation": {
			set("default_transaction_isolation", "serializable"),
			nil,
			"server",
			"warn",
			[]string{"default_transaction_isolation is serializable"},
		},
		"idle sessions": {
			set("idle_session_timeout", "5min"),
			nil,
			"server",
			"info",
			[]string{"idle_session_timeout is 5min"},
		},
		"read-only": {
			set("default_transaction_read_only", "on"),
			nil,
			"server",
			"fail",
			[]string{"transactions of postgres are read-only"},
		},
		"clocks":               {"", nil, "clocks", "ok", []string{"agree"}},
		"copies, not declared": {"", nil, "copies", "warn", []string{"-copies-within was not given"}},
		"copies, shorter":      {"", []string{"-copies-within", "7d"}, "copies", "ok", []string{"at least 7d"}},
		"copies, longer": {
			"",
			[]string{"-copies-within", "8d"},
			"copies",
			"fail",
			[]string{"producers: copies may come for 8d", "-ring consumer_keys", "D above 8d"},
		},
		"copies, for ever": {
			`update onlyonce.rings set horizon = null`,
			[]string{"-copies-within", "800d"},
			"copies",
			"ok",
			nil,
		},
		"relays, not declared": {"", nil, "relay-retries", "ok", []string{"was not given"}},
		"relays, shorter":      {"", []string{"-relay-retries", "24h"}, "relay-retries", "ok", []string{"at least 1d"}},
		"relays, longer": {
			"",
			[]string{"-relay-retries", "169h"},
			"relay-retries",
			"fail",
			[]string{"relays: ", "inbox horizon"},
		},
		"call tried for long": {
			`insert into onlyonce.parked (kind, state, reason, scope, sink, open, first_attempt_at)
				values ('call', 'waiting', 'rejected', 's', 'payments', true, now() - interval '8 days')`,
			nil,
			"relay-retries",
			"warn",
			[]string{"parked call 1 to sink payments was first tried 192h", "parked show -id 1"},
		},
		"call tried for less": {
			`insert into onlyonce.parked (kind, state, reason, scope, sink, open, first_attempt_at)
				values ('call', 'waiting', 'rejected', 's', 'payments', true, now() - interval '6 days')`,
			nil,
			"relay-retries",
			"ok",
			nil,
		},
		"call tried for long for a class": {
			`insert into onlyonce.parked (kind, state, reason, scope, sink, open, first_attempt_at)
				values ('call', 'waiting', 'rejected', 's', 'payments', true, now() - interval '2 days');
				insert into onlyonce.scopes (scope, topics, first_topic, class) values ('stock', '{orders}', '', 'short')`,
			nil,
			"relay-retries",
			"info",
			[]string{"parked call 1 to sink payments", "consumer_short_keys", "class short: stock"},
		},
		"no webhooks": {`update onlyonce.rings set horizon = '1 day'`, nil, "webhooks", "ok", []string{"no endpoint"}},
		"webhooks":    {webhookID("1 minute"), nil, "webhooks", "ok", []string{"at least 1d"}},
		"webhooks, too short": {
			webhookID("1 minute") + `update onlyonce.rings set horizon = '12 hours'`,
			nil,
			"webhooks",
			"fail",
			[]string{"-ring standard_keys", "a day at least"},
		},
		"webhooks, of a class": {
			webhookID("1 minute") + `insert into onlyonce.horizons values ('webhook/gh', 'short', 'standard', now());
				update onlyonce.rings set horizon = '12 hours' where name like '%short%'`,
			nil,
			"webhooks",
			"fail",
			[]string{"endpoint gh", "-ring standard_short_keys"},
		},
		"webhooks, declared": {"", []string{"-webhook-retention", "30d"}, "webhooks", "fail", []string{"D above 30d"}},
		"webhooks, old ids": {
			webhookID("9 days"),
			nil,
			"webhooks",
			"warn",
			[]string{"endpoint gh has ids that are 216h", "nothing deletes them"},
		},
		"log ring": {
			"",
			nil,
			"consumer_keys",
			"ok",
			[]string{"at least 7d", "each 24h", "10 tables", "9 free", "nothing is due"},
		},
		"log ring, rotated": {rotates, nil, "consumer_keys", "ok", []string{"a process rotates it"}},
		"clock ring":        {"", nil, "standard_keys", "ok", nil},
		"for ever": {
			`update onlyonce.rings set horizon = null`,
			nil,
			"standard_keys",
			"info",
			[]string{"for ever", "inbox horizon -ring standard_keys"},
		},
		"nobody rotates": {
			oldCurrent,
			nil,
			"consumer_keys",
			"fail",
			[]string{"no process rotates it", "25h", "24h0m0s at most", "although postgres may"},
		},
		"nobody rotates, nor need": {
			`update onlyonce.segments set opened_at = now() - interval '25 hours' where ring = 'consumer_keys' and slot = 0`,
			nil,
			"consumer_keys",
			"ok",
			nil,
		},
		"rotated, and late": {oldCurrent + rotates, nil, "consumer_keys", "warn", []string{"although a process holds the lease"}},
		"rotated, and draining": {
			oldCurrent + rotates + `update onlyonce.rings set draining = 1 where name = 'consumer_keys'`,
			nil,
			"consumer_keys",
			"warn",
			[]string{"the one before it drains", "finding transactions"},
		},
		"full": {full + rotates, nil, "consumer_keys", "warn", []string{"no segment is free"}},
		"too few tables": {
			`update onlyonce.rings set slots = 8 where name = 'standard_keys'`,
			nil,
			"standard_keys",
			"fail",
			[]string{"has 8 tables, and a horizon takes 9"},
		},
		"clock went back": {
			`update onlyonce.segments set opened_at = now() + interval '1 hour' where ring = 'consumer_keys' and slot = 0`,
			nil,
			"consumer_keys",
			"fail",
			[]string{"in the future", "rotation is halted"},
		},
		"lease of the future": {
			`insert into onlyonce.leases (name, epoch, nonce, until) values ('relay/p/0', 1, gen_random_uuid(), now() + interval '6 days')`,
			nil,
			"clocks",
			"fail",
			[]string{"1 leases end more than an hour ahead"},
		},
		"due in the future": {
			`insert into onlyonce.parked (kind, state, reason, scope, next_attempt_at)
				values ('message', 'retrying', 'failed', 's', now() + interval '6 days')`,
			nil,
			"clocks",
			"fail",
			[]string{"1 parked rows got their due time while the clock was ahead"},
		},
		"scheduled": {
			`insert into onlyonce.parked (kind, state, reason, scope, next_attempt_at)
				values ('call', 'retrying', 'scheduled', 's', now() + interval '6 days')`,
			nil,
			"clocks",
			"ok",
			nil,
		},
		"no cursors":  {"", nil, "frontiers", "ok", nil},
		"cursor near": {frontier("23 hours"), nil, "frontiers", "ok", nil},
		"cursor behind": {
			frontier("25 hours"),
			nil,
			"frontiers",
			"warn",
			[]string{"partition 0 is 25h", "cursor retire -scope stock -topic orders -partition 0 -reason WHY"},
		},
		"cursor not heard of": {oneCursor, nil, "frontiers", "warn", []string{"has not reported its progress"}},
		"cursor ahead of the clock": {
			frontier("-1 hour"),
			nil,
			"frontiers",
			"fail",
			[]string{"partition 0 is recorded as handled up to ", "ahead of the database's clock", "correct the clock"},
		},
		"cursor hardly ahead": {frontier("-30 seconds"), nil, "frontiers", "ok", nil},
		"one ahead, and many": {
			cursors(12) + `insert into onlyonce.frontiers select id, 0, now() + interval '1 hour' from onlyonce.cursors
				where partition = 11`,
			nil,
			"frontiers",
			"fail",
			[]string{"partition 11 is recorded"},
		},
		"ahead, and for ever": {
			frontier("-1 hour") + `update onlyonce.rings set horizon = null`,
			nil,
			"frontiers",
			"fail",
			[]string{"ahead of the database's clock"},
		},
		"cursor, for ever": {
			oneCursor + `update onlyonce.rings set horizon = null`,
			nil,
			"frontiers",
			"ok",
			[]string{"nothing is forgotten"},
		},
		"slots":   {"", nil, "slots", "ok", nil},
		"history": {"", nil, "history", "ok", []string{"a primary, with 0 standbys connected"}},
		"functions": {
			`alter function pg_catalog.pg_control_system() rename to gone`,
			nil,
			"server",
			"fail",
			[]string{"relays cannot work: pg_control_system() cannot be called", "docs/guide/servers.md"},
		},
		"functions of the WAL": {
			`alter function pg_catalog.pg_current_wal_insert_lsn() rename to gone`,
			nil,
			"server",
			"warn",
			[]string{"pg_current_wal_insert_lsn() cannot be called", "without it relays take each restart of the server for a failover"},
		},
		"replication": {"", nil, "replication", "ok", nil},
		"outbox":      {"", nil, "outbox", "ok", []string{"0 sinks"}},
		"events":      {"", nil, "events", "ok", nil},
		"unread stream": {
			`insert into onlyonce.streams (topic, partitions) values ('hooks', 1);
				select onlyonce.append_events('{hooks}', '{0}', '{t}', '{e1}', '{k}', '{0}', '{}', '{}', '{x}')`,
			nil,
			"events",
			"warn",
			[]string{"stream hooks, which has 1 events"},
		},
		"parked": {
			`insert into onlyonce.parked (kind, state, reason, scope) values ('message', 'retrying', 'failed', 's')`,
			nil,
			"parked",
			"ok",
			nil,
		},
		"parked, waiting": {
			`insert into onlyonce.parked (kind, state, reason, scope) values ('message', 'waiting', 'conflict', 's')`,
			nil,
			"parked",
			"warn",
			[]string{"1 of kind message wait", "parked list -kind message -state waiting", "parked discard -id ID"},
		},
		"parked, unknown": {
			`insert into onlyonce.parked (kind, state, reason, scope, sink) values ('call', 'reconcile', 'window', 's', 'p')`,
			nil,
			"parked",
			"warn",
			[]string{"reconcile", "-verified-applied"},
		},
		"requests": {"", nil, "requests", "ok", nil},
		"request abandoned": {
			`insert into onlyonce.http_records (id, tenant, scope, fingerprint, token, state, keep, abandoned_at)
				values (gen_random_uuid(), '', 'http', '', gen_random_uuid(), 'running', '1 day', now())`,
			nil,
			"requests",
			"warn",
			[]string{"1 HTTP requests", "never completed", "request close"},
		},
		"secret replaced": {
			`insert into onlyonce.http_fingerprint_keys values (7, 'x', now(), now())`,
			nil,
			"fingerprint-keys",
			"fail",
			[]string{"under the id 7", "fingerprint-key-changed", "an id of its own"},
		},
		"secret replaced long ago": {
			`insert into onlyonce.http_fingerprint_keys values (7, 'x', now(), now() - interval '2 hours')`,
			nil,
			"fingerprint-keys",
			"ok",
			[]string{"was refused"},
		},
		"request set aside": {
			`insert into onlyonce.http_records (id, tenant, scope, fingerprint, token, state, keep)
				values (gen_random_uuid(), '', 'http', '', gen_random_uuid(), 'reconcile', '1 day')`,
			nil,
			"requests",
			"warn",
			[]string{"1 HTTP requests", "request resolve"},
		},
		"pauses": {oneCursor, nil, "pauses", "ok", []string{"no scope and no partition"}},
		"paused": {
			oneCursor + `insert into onlyonce.pauses (scope, reason) values ('stock', 'why not')`,
			nil,
			"pauses",
			"info",
			[]string{"scope stock as a whole is paused", "1 cursors in use", "why not", "cursor resume -scope stock -reason WHY"},
		},
		"paused partition": {
			oneCursor + `insert into onlyonce.pauses (scope, topic, partition, reason) values ('stock', 'orders', 0, 'why not')`,
			nil,
			"pauses",
			"info",
			[]string{"partition 0 is paused", "why not", "cursor resume -scope stock -topic orders -partition 0 -reason WHY"},
		},
		"paused ahead of cursors": {
			`insert into onlyonce.pauses (scope, topic, partition, reason) values ('my shop', 'orders', 0, 'why not')`,
			nil,
			"pauses",
			"info",
			[]string{"0 cursors in use", "-scope 'my shop' -topic orders"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fixture{plain.session, plain.pool}
			f.t = t
			if c.setup != "" {
				f = newFixture(t)
				f.exec(strings.ReplaceAll(c.setup, "THIS", pgx.Identifier{f.pool.Config().ConnConfig.Database}.Sanitize()))
			}
			r := f.examines(c.level == "fail", c.args...)
			r.has(t, c.check, c.level, c.want...)
			// The text for people has the same content as the JSON.
			out := f.run(append([]string{"doctor", "-all"}, c.args...)...)
			for _, x := range r.Findings {
				if x.Check == c.check &&
					x.Level == c.level &&
					!strings.Contains(out.out, c.level+strings.Repeat(" ", 6-len(c.level))+c.check+": ") {
					t.Errorf("%s %s is not in\n%s", c.check, c.level, out.out)
				}
			}
		})
	}
}

func set(name, value string) string {
	return `alter database THIS set ` + name + ` = '` + value + `'`
}

func webhookID(ago string) string {
	return `do $$ begin perform set_config('onlyonce.fenced', pg_current_xact_id()::text, true);
		insert into onlyonce.webhook_ids values ('gh', gen_random_uuid(), now() - interval '` + ago +
		`'); perform onlyonce.seal(); end $$; `
}

// Sinks with calls, and relays or none.
func TestDoctorOutbox(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.enqueues("mail", "", "a")
	f.examines(false).has(t, "outbox", "warn", "no relay lists sink mail")
	f.lists("mail")
	f.examines(false).has(t, "outbox", "warn", "no relay holds sink mail", "start a relay")
	f.exec(`update onlyonce.leases set nonce = gen_random_uuid(), until = now() + interval '1 hour'`)
	f.examines(false).has(t, "outbox", "ok", "1 sinks")
	f.run("outbox", "pause", "-sink", "mail", "-reason", "why", "-yes").want(t, statusGood)
	f.examines(false).has(t, "outbox", "info", "sink mail is paused", "outbox resume -sink mail")
	f.exec(`update onlyonce.batches set xid = '999999999999'`)
	f.examines(true).has(t, "history", "fail", "sink mail", "another database cluster", "outbox rebase")
	f.exec(`update onlyonce.batches set xid = pg_current_xact_id()`)
	f.examines(false)
	f.exec(`update onlyonce.lane_cursors set system_id = 1`)
	f.examines(true).has(t, "history", "fail", "another database cluster", "outbox rebase")
	if n := f.examines(true); n.Fail != 1 {
		t.Errorf("%d fail", n.Fail)
	}
	f.run("doctor").want(t, statusFailed, "1 of", "checks failed").lines(t, 1)
}

func TestDoctorDoesNotCountForEver(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.lists("payments")
	f.enqueues("payments", "k", "a")
	f.exec(`alter table onlyonce.batches rename to batches_rows`)
	f.exec(`create function slow(t timestamptz) returns timestamptz language plpgsql stable as $$ begin perform pg_sleep(3600);
		return t;
		end $$`)
	f.exec(`create view onlyonce.batches as select slot, lane, id, n, xid, sink, slow(created_at) as created_at from onlyonce.batches_rows`)
	f.count = 50 * time.Millisecond
	f.examines(false).has(t, "outbox", "info", "counting took over 50ms")
}

// What only a server of its own can show: roles, settings, transactions, slots.
func TestDoctorServer(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, map[string]string{
		"max_prepared_transactions":           "2",
		"fsync":                               "off",
		"full_page_writes":                    "off",
		"wal_level":                           "logical",
		"track_commit_timestamp":              "on",
		"idle_in_transaction_session_timeout": "1min",
	})
	pool := pgtest.Pool(t, server)
	f := &fixture{session{t: t, url: pool.Config().ConnString()}, pool}
	f.run("migrate").want(t, statusGood)
	r := f.examines(false)
	r.has(t, "server", "info", "max_prepared_transactions is 2")
	r.has(t, "server", "warn", "fsync: fsync is off")
	r.has(t, "roles", "info", "none of the roles of docs/roles.sql")
	r.has(t, "slots", "ok")
	r.has(t, "transactions", "ok")
	for _, x := range r.Findings {
		if x.Check == "server" && (strings.Contains(x.Text, "track_commit") || strings.Contains(x.Text, "idle_in")) {
			t.Errorf("%+v", x)
		}
	}

	file, err := os.ReadFile("../../docs/roles.sql")
	if err != nil {
		t.Fatal(err)
	}
	roles := string(file)
	f.exec(roles)
	f.examines(false).has(t, "roles", "ok", "onlyonce_app, onlyonce_http, onlyonce_relay have their rights")
	f.exec(`revoke insert on onlyonce_segments.standard_keys_3 from onlyonce_app; revoke select on onlyonce.lanes from onlyonce_relay`)
	r = f.examines(true)
	r.has(t, "roles", "fail", "role onlyonce_app lacks 1 right: INSERT on onlyonce_segments.standard_keys_3", "run docs/roles.sql again")
	r.has(t, "roles", "fail", "role onlyonce_relay lacks 1 right: SELECT on onlyonce.lanes")
	f.exec(roles)

	// As an operator with least privileges, who cannot see the activity of other roles.
	f.exec(`create role ops login in role onlyonce_operator`)
	operator, err := url.Parse(f.url)
	if err != nil {
		t.Fatal(err)
	}
	operator.User = url.User("ops")
	asOperator := &fixture{session{t: t, url: operator.String()}, pool}
	r = asOperator.examines(false)
	r.has(t, "transactions", "info", "is hidden from this one", "pg_read_all_stats")
	for _, x := range r.Findings { // other logins' connections count too
		if x.Check == "connections" && strings.HasPrefix(x.Text, "1 of ") {
			t.Errorf("%+v", x)
		}
	}
	r.has(t, "server", "warn", "fsync")
	f.exec(oldCurrent)
	f.exec(`create role stock login in role onlyonce_app, onlyonce_rotator`)
	asOperator.examines(true).has(t, "consumer_keys", "fail", "although postgres, stock may")
	asOperator.run("inbox", "rotate").want(t, statusEnvironment, "role ops lacks the rights to rotate ring consumer_keys",
		"onlyonce_rotator")
	asOperator.run("explain", "k", "-scope", "s").want(t, statusGood, "no segment")
	asOperator.run("explain", "-topic", "t", "-partition", "0", "-offset", "1").want(t, statusGood)
	f.exec(`truncate onlyonce_segments.consumer_keys_0`)

	f.exec(`select pg_create_physical_replication_slot('left', true)`)
	f.exec(`select pg_create_logical_replication_slot('changes', 'pgoutput')`)
	r = f.examines(false)
	r.has(t, "slots", "warn", "physical replication slot left", "pg_drop_replication_slot('left')")
	r.has(t, "slots", "warn", "logical replication slot changes: it holds back the server's log, and vacuum")

	f.exec(`begin; select pg_current_xact_id(); prepare transaction 'left'`)
	f.examines(false)
}

// On a standby doctor reports everything that it reports on a primary, and that it is a standby.
func TestDoctorStandby(t *testing.T) {
	t.Parallel()
	primary, err := devenv.StartPostgres(t.Context(), devenv.Options{Own: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = primary.Stop() })
	p := session{t: t, url: primary.URL}
	p.run("migrate").want(t, statusGood)
	standby, err := primary.Standby(t.Context(), "away", devenv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = standby.Stop() })
	if err := primary.CaughtUp(t.Context(), "away"); err != nil {
		t.Fatal(err)
	}
	p.run("doctor", "-all").want(t, statusGood, "info  replication: standbys are asynchronous", "with 1 standbys connected")
	s := session{t: t, url: standby.URL}
	s.run("doctor").want(t, statusGood, "warn  server: standby: the server is a standby", "info  history: a standby; ")
	s.run("explain", "k", "-scope", "s").want(t, statusGood, "no segment")
	s.run("explain", "-topic", "t", "-partition", "0", "-offset", "0").want(t, statusGood, "has no cursor")
}

// Each line of the list of checks has a finding, and each finding has its line.
func TestDoctorChecks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	brokers := kafkatest.Fake(t)
	f.exec(strings.ReplaceAll(oneCursor, "'orders'", "'"+kafkatest.Topic(t, brokers, 1, nil)+"'"))
	found := map[string]bool{}
	for _, finding := range f.examines(false, "-restore-within", "1h", "-brokers", strings.Join(brokers, ",")).Findings {
		found[finding.Check] = true
	}
	for _, c := range doctorChecks {
		for _, name := range c.names {
			if !found[name] {
				t.Errorf("no finding is of check %s", name)
			}
			delete(found, name)
		}
	}
	for name := range found {
		t.Errorf("check %s is not in the list", name)
	}
}

// More connections than are left over are named, by the database's limit too.
func TestDoctorConnections(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.examines(false).has(t, "connections", "ok", "are in use")
	f.exec(`alter database ` + one[string](f, `select quote_ident(current_database())`) + ` connection limit 1`)
	f.examines(false).has(t, "connections",
		"warn",
		"of 1 connections that the server accepts are in use",
		"connection limit is 1",
		"onlyonce plan connections")
}

func TestDoctorAddress(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.examines(false).has(t, "address", "info", "add target_session_attrs=read-write")
	u, err := url.Parse(f.url)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("target_session_attrs", "read-write")
	u.RawQuery = q.Encode()
	f.examines(false, "-postgres", u.String()).has(t, "address", "ok")
}
