package preflight_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/consumer"
	"github.com/onlyonce/onlyonce/dedupe"
	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/preflight"
	"github.com/onlyonce/onlyonce/internal/rig/memlog"
	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/ops"
	"github.com/onlyonce/onlyonce/outbox"
	"github.com/onlyonce/onlyonce/test/devenv/pgtest"
)

// patience bounds what tests wait for.
var patience = pgtest.Patience(time.Minute)

// cluster is a server of the test's own, because roles belong to a server. onlyonce_migrator has
// migrated it, docs/roles.sql was run as the file describes, and there is one login for each role.
type cluster struct {
	t     *testing.T
	super *pgxpool.Pool // on the database
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	server := pgtest.Server(t, nil)
	admin := pgtest.Pool(t, server)
	if _, err := admin.Exec(t.Context(), `create database shop`); err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, super: pgtest.Pool(t, strings.Replace(server, "/postgres?", "/shop?", 1))}
	c.runFile() // before the first migration
	for login, role := range map[string]string{"deploy": "migrator", "stock": "app", "payments": "relay", "ops": "operator"} {
		c.exec(fmt.Sprintf(`create role %s login in role onlyonce_%s`, login, role))
	}
	c.exec(`alter role deploy set role onlyonce_migrator`)
	conn, err := c.as("deploy").Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := migrations.Apply(t.Context(), conn.Conn()); err != nil {
		t.Fatalf("migrating as onlyonce_migrator: %v", err)
	}
	c.runFile() // and after it
	return c
}

func (c *cluster) runFile() {
	c.t.Helper()
	sql, err := os.ReadFile("../../docs/roles.sql")
	if err != nil {
		c.t.Fatal(err)
	}
	c.exec(string(sql))
}

func (c *cluster) exec(sql string) {
	c.t.Helper()
	if _, err := c.super.Exec(c.t.Context(), sql); err != nil {
		c.t.Fatalf("%.60s: %v", sql, err)
	}
}

func (c *cluster) url(login string) string {
	u, err := url.Parse(c.super.Config().ConnString())
	if err != nil {
		c.t.Fatal(err)
	}
	u.User = url.User(login)
	return u.String()
}

func (c *cluster) as(login string) *pgxpool.Pool { return pgtest.Pool(c.t, c.url(login)) }

func (c *cluster) count(sql string) (n int) {
	c.t.Helper()
	if err := c.super.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		c.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func (c *cluster) until(what string, cond func() bool) {
	c.t.Helper()
	pgtest.Until(c.t, patience, what, cond)
}

// runs runs something until the test stops it, and expects no error of it.
func (c *cluster) runs(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	return func() {
		c.t.Helper()
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				c.t.Error(err)
			}
		case <-time.After(patience):
			c.t.Error("Run does not return")
		}
	}
}

// S2: consumer, relay and operator do their work with what docs/roles.sql grants them, and no more.
func TestS2RolesDoTheirWork(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.exec(`create table effects (value text); grant insert on effects to stock`)
	for _, as := range []preflight.Role{preflight.Events, preflight.Receiver} {
		if _, err := preflight.Check(t.Context(), c.as("stock"), as); err != nil {
			t.Error(err)
		}
	}
	for login, as := range map[string]preflight.Role{"stock": preflight.App, "payments": preflight.Relay} {
		if warnings, err := preflight.Check(t.Context(), c.as(login), as); err != nil || len(warnings) > 0 {
			t.Errorf("%s: %v, %v", login, warnings, err)
		}
	}

	// A batch for each message, so that enough of them pass for progress to be pruned.
	const messages = 300
	log := memlog.NewLog("orders", 1)
	for i := range messages {
		v := fmt.Sprint(i)
		log.Append(0, v, consumer.Header{Name: "message-id", Value: []byte(v)})
	}
	log.Append(0, "0", consumer.Header{Name: "message-id", Value: []byte("0")})     // a copy
	log.Append(0, "other", consumer.Header{Name: "message-id", Value: []byte("0")}) // a conflict
	handle := func(ctx context.Context, tx consumer.Tx, m *consumer.Message) error {
		switch m.Offset {
		case 7:
			return consumer.Permanent(errors.New("never"))
		case 8:
			return errors.New("not now")
		case 9:
			if err := outbox.Enqueue(ctx, tx, outbox.Call{Sink: "payments", Name: "charge", Target: "/"}); err != nil {
				return err
			}
		}
		tx.Queue(`insert into effects values ($1)`, string(m.Value))
		return nil
	}
	consume := func() (stop func()) {
		worker, err := consumer.New(
			c.as("stock"),
			&memlog.Source{Log: log, GroupID: "stock"},
			consumer.HandlerFunc(handle),
			consumer.Config{
				Scope: "stock", Key: consumer.HeaderKey("message-id"), BatchSize: 1, Linger: time.Millisecond,
				MaxAttempts: 2, Backoff: dedupe.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond}},
		)
		if err != nil {
			t.Fatal(err)
		}
		return c.runs(worker.Run)
	}
	stop := consume()
	c.until("all messages are handled", func() bool {
		return c.count(`select coalesce(max(next_offset), 0) from onlyonce.positions`) == messages+2
	})
	stop()
	stop = consume()
	c.until("the cursor is taken over again", func() bool { return c.count(`select max(epoch) from onlyonce.leases`) == 2 })
	stop()
	if n := c.count(`select count(*) from effects`); n != messages-2 {
		t.Errorf("%d effects, want %d", n, messages-2)
	}
	if n := c.count(`select count(*) from onlyonce.parked where kind = 'message'`); n != 3 {
		t.Errorf("%d messages are parked, want 3", n)
	}
	if n := c.count(`select count(*) from onlyonce.progress`); n >= messages {
		t.Errorf("%d rows of progress: nothing was pruned", n)
	}

	// Without a handler: calls to be delivered, tried again and parked.
	app := c.as("stock")
	for _, id := range []string{"fine", "again", "never"} {
		err := pgx.BeginFunc(t.Context(), app, func(tx pgx.Tx) error {
			return outbox.Enqueue(t.Context(), tx, outbox.Call{Sink: "payments", Name: id, ID: id, Scope: "checkout", Target: "/"})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	relay, err := outbox.NewRelay(c.as("payments"), outbox.RelayConfig{
		Sinks:        []outbox.Sink{sink{}},
		PollInterval: 10 * time.Millisecond,
		Backoff:      dedupe.Backoff{Min: time.Millisecond, Max: time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	stop = c.runs(relay.Run)
	c.until("all calls are settled", func() bool {
		return c.count(`select count(*) from onlyonce.calls where state = 'delivered'`) == 3 &&
			c.count(`select count(*) from onlyonce.calls`) == 4 &&
			c.count(`select count(*) from onlyonce.parked where kind = 'call' and state = 'waiting'`) == 1
	})
	stop()

	// A message that is handled again has the keys of calls noted, in tables that it may not write.
	if _, err := app.Exec(t.Context(), `select onlyonce.index_calls(5000)`); err != nil {
		t.Error(err)
	}
	if n := c.count(`select count(*) from onlyonce.call_keys`); n != 4 {
		t.Errorf("the keys of %d calls are noted, want 4", n)
	}

	// The command, as an operator.
	program := filepath.Join(t.TempDir(), "onlyonce")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../cmd/onlyonce").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c.exec(`insert into onlyonce.streams (topic, partitions) values ('operations', 1);
		insert into onlyonce.operations (id, record_id, topic, tenant, principal, name, keep, state)
		values (gen_random_uuid(), '5f0c5f0c-0000-8000-8000-000000000000', 'operations', '', '', 'export', '7 days', 'failed')`)
	for _, args := range []string{
		"request erase -id 5f0c5f0c-0000-8000-8000-000000000000 -reason test -yes", "status",
		"cursor show -scope stock -topic orders -partition 0", "parked list",
		"explain 0 -scope stock", "explain -topic orders -partition 0 -offset 1", "doctor",
		"cursor adopt -scope stock -topic orders -partition 0 -at 400 -reason test -yes",
		"cursor adopt -scope new -topic orders -partition 0 -at 4 -reason test -yes",
	} {
		argv := strings.Fields(args)
		argv = append(argv, "-postgres", c.url("ops"))
		if out, err := exec.CommandContext(t.Context(), program, argv...).CombinedOutput(); err != nil {
			t.Errorf("onlyonce %s as operator: %v\n%s", args, err, out)
		}
	}
}

// sink delivers all but the call that is named never, the one named again at its second attempt.
type sink struct{}

func (sink) Name() string { return "payments" }
func (sink) Limits() outbox.Limits {
	return outbox.Limits{KeyWindow: outbox.Forever, Timeout: time.Second}
}
func (sink) Send(_ context.Context, a *outbox.Attempt) outbox.Result {
	switch {
	case a.Name == "never":
		return outbox.Result{Outcome: outbox.Rejected, Reason: "never"}
	case a.Name == "again" && a.Number == 1:
		return outbox.Failure("again", nil)
	}
	return outbox.Result{Outcome: outbox.Delivered}
}

// S2: a role that may create functions in a schema of another login's search_path is named, at its
// start and by the doctor. docs/roles.sql takes the right away that PostgreSQL 14 gives to
// everybody.
func TestS2OthersMayCreateFunctions(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.exec(`create schema shared;
		create schema "Odd_name";
		grant create on schema shared, "Odd_name" to stock;
		grant usage on schema shared, "Odd_name" to payments, ops`)
	roles := map[string]preflight.Role{"stock": preflight.App, "payments": preflight.Relay}
	names := func(login string) string {
		t.Helper()
		warnings, err := preflight.Check(
			t.Context(),
			c.as(login),
			roles[login],
		)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(warnings, "\n")
	}
	examined := func() string {
		t.Helper()
		report, err := ops.Examine(t.Context(), c.as("ops"), ops.ExamineQuestion{})
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, f := range report.Findings {
			if strings.Contains(f.Text, "may create functions") {
				found = append(found, f.Level+" "+f.Text)
			}
		}
		return strings.Join(found, "\n")
	}
	for _, login := range []string{"stock", "payments"} {
		if got := names(login); got != "" {
			t.Errorf("%s, none may: %s", login, got)
		}
	}
	if got := examined(); got != "" {
		t.Errorf("the doctor, none may: %s", got)
	}
	c.exec(`grant create on schema public to public`)
	if got := names("payments"); !strings.Contains(got, "ops, stock may create functions in public, which "+
		"is in the search_path of payments") {
		t.Errorf("as PostgreSQL 14 has it: %q", got)
	}
	if got := examined(); !strings.HasPrefix(got, "warn search_path: payments, stock may create functions in public, ") {
		t.Errorf("the doctor: %q", got)
	}
	c.runFile()
	if got := names("payments") + names("stock") + examined(); got != "" {
		t.Errorf("after the file: %s", got)
	}
	c.exec(`alter role payments set search_path = shared, public; alter role ops set search_path = "$user", "Odd_name"`)
	if got := names("payments"); !strings.Contains(got, "stock may create functions in shared, ") {
		t.Errorf("a schema of its own: %q", got)
	}
	if got := examined(); !strings.Contains(got, `stock may create functions in "Odd_name", `) {
		t.Errorf("the doctor, a schema of its own: %q", got)
	}
}

// S2: what each role must not do, the server refuses.
func TestS2RolesCanDoNoMore(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	ddl := []string{
		`truncate onlyonce_segments.consumer_keys_0`, `drop table onlyonce.audit`,
		`create table onlyonce.mine ()`, `alter table onlyonce.progress disable trigger sealed`,
		`create or replace function onlyonce.seal() returns void language sql as 'select'`,
		`drop schema onlyonce cascade`, `insert into onlyonce.schema_version (version) values (9)`,
		`delete from onlyonce.cursors`,
		`update onlyonce_segments.consumer_keys_0 set fingerprint = 0`,
		`delete from onlyonce_segments.consumer_keys_0`, `delete from onlyonce.inbox`,
		`update onlyonce.progress set next_offset = 9`, `delete from onlyonce.parked`,
		`update onlyonce.audit set reason = 'x'`, `delete from onlyonce.audit`,
	}
	for login, own := range map[string][]string{
		"stock": {
			`delete from onlyonce.call_keys`,
			`insert into onlyonce.call_keys values (0, 0, 0, '3', 1)`,
			`insert into onlyonce_segments.call_keys_0 values (0, 0, 0, '3', 1)`,
			`update onlyonce.call_index set snapshot = pg_current_snapshot()`,
			`update onlyonce.batches set body = ''`, `delete from onlyonce.batches`,
			`update onlyonce.lane_cursors set version = 0`, `truncate onlyonce_segments.batches_1`,
			`insert into onlyonce.audit (action, reason) values ('x', 'x')`,
		},
		"payments": {
			`insert into onlyonce_segments.consumer_keys_0 values (gen_random_uuid(), 0)`,
			`delete from onlyonce.leases`, `update onlyonce.cursors set released_at = null`,
			`delete from onlyonce.progress`, `select from onlyonce.inbox`,
			`insert into onlyonce.batches (slot, lane, n, bytes, keys, sink, tenant, scope, name, method, target, header, body)
				values (0, 0, 1, 0, array[gen_random_uuid()], 's', '', '', 'n', 'm', 't', '', '')`,
			`update onlyonce.batches set body = ''`, `truncate onlyonce_segments.batches_1`,
			`update onlyonce.rings set cur = 1`,
		},
		"ops": {
			`delete from onlyonce.leases`,
			`insert into onlyonce.progress values (1, 0, 0, 1)`,
			`truncate onlyonce.batches`,
			`truncate onlyonce_segments.batches_1`,
		},
	} {
		conn, err := pgx.Connect(t.Context(), c.url(login))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(context.Background()) }()
		for _, sql := range append(own, ddl...) {
			_, err := conn.Exec(t.Context(), sql)
			if guard.SQLState(err) != "42501" {
				t.Errorf("%s may: %s (%v)", login, sql, err)
			}
		}
	}
}

// O3: who enqueues writes no transaction id but its own into the log, and no id that it has not
// drawn. Who may update the log may, as a restore of its data does; logical replication fires
// no such trigger.
func TestO3OnlyOwnNumbers(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	insert := func(login, column, value, before string) string {
		conn, err := pgx.Connect(t.Context(), c.url(login))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(context.Background()) }()
		_, err = conn.Exec(t.Context(), before+`; insert into onlyonce.batches (slot, lane, n, bytes, `+column+
			`, sink, keys, tenant, scope, name, method, target, header, body)
			values (0, 3, 1, 1, `+value+`, 'payments', array[gen_random_uuid()], '', 's', 'n', 'POST', '/x', '', 'x')`)
		return guard.SQLState(err)
	}
	for _, x := range []struct{ login, column, value, before, code string }{
		{"stock", "xid", `'999999999999'`, "select", "23514"},
		{"stock", "xid", `'3'`, "select", "23514"},
		{"stock", "xid", `pg_current_xact_id()`, "select", ""},
		{"stock", "id", `1024`, "select", "55000"}, // it has drawn none in its session
		{"stock", "id", `1024000000`, "select nextval('onlyonce.outbox_id')", "23514"},
		{"stock", "id", `1024`, "select nextval('onlyonce.outbox_id')", "23514"},
		{"stock", "id", `nextval('onlyonce.outbox_id')`, "select", ""},
		{"ops", "xid", `'999999999999'`, "select", ""},
		{"postgres", "xid", `'999999999999'`, "select", ""},
		{"postgres", "xid, id", `'3', 1024`, "select", ""},
	} {
		if code := insert(x.login, x.column, x.value, x.before); code != x.code {
			t.Errorf("%s, %s %s: %q, want %q", x.login, x.column, x.value, code, x.code)
		}
	}
}

// S2: the contents of a call and of a message are written once. Each role settles its own rows and
// takes its own leases. It cannot change rows of another role, even in a table that it may write.
func TestS2RowsOfOtherRoles(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.exec(`create role web login in role onlyonce_http;
		create role dual login in role onlyonce_app, onlyonce_relay;
		create role mine login;
		grant usage on schema onlyonce, onlyonce_segments to mine; grant select, update on onlyonce.parked, onlyonce.leases to mine`)
	c.exec(`insert into onlyonce.parked (kind, state, reason, scope, key, sink, lane, call_name, method, target, body, next_attempt_at)
		values ('call', 'retrying', 'failed', 's', gen_random_uuid(), 'payments', 0, 'charge', 'POST', '/charges', '{}', clock_timestamp());
		insert into onlyonce.parked (kind, state, reason, scope, key, topic, partition, "offset", body, next_attempt_at)
		values ('message', 'retrying', 'failed', 's', gen_random_uuid(), 'orders', 0, 1, '{}', clock_timestamp()),
		('event', 'waiting', 'same-body', 's', gen_random_uuid(), 'webhook.e', null, null, '{}', null);
		insert into onlyonce.leases (name, epoch, nonce, until) select n, 1, gen_random_uuid(), clock_timestamp() + interval '1 hour'
		  from unnest(array['relay/payments/0', 'relays/payments/0', 'http/1', 'cursor/s/orders/0', 'webhook/e/backfill',
		  'readers/g/webhook.e/0', 'events/g/webhook.e/0',
		                    'ring/outbox', 'ring/consumer_keys', 'filters/standard_keys', 'observe', 'of nobody']) n`)
	c.exec(`create role rot login in role onlyonce_rotator; create role dash login in role onlyonce_viewer; grant onlyonce_relay to dash`)
	const own, denied = "", "42501"
	for _, x := range []struct {
		login, sql string
		rows       int64
		code       string
	}{
		{"stock", `update onlyonce.parked set body = '{"amount": 9}' where kind = 'call'`, 0, denied},
		{"stock", `update onlyonce.parked set target = '/payouts'`, 0, denied},
		{"stock", `update onlyonce.parked set body = ''`, 0, denied},
		{"stock", `update onlyonce.parked set key = gen_random_uuid()`, 0, denied},
		{"stock", `update onlyonce.parked set kind = 'call'`, 0, denied},
		{"payments", `update onlyonce.parked set body = ''`, 0, denied},
		{"payments", `update onlyonce.parked set target = '/payouts'`, 0, denied},
		{
			"stock",
			`insert into onlyonce.parked (kind, state, reason, scope, sink, lane, method, target, body, next_attempt_at)
				values ('call', 'retrying', 'failed', 's', 'payments', 0, 'POST', '/payouts', '', now())`,
			0,
			denied,
		},
		{"payments", `insert into onlyonce.parked (kind, state, reason, scope) values ('message', 'waiting', 'failed', 's')`, 0, denied},
		{"stock", `update onlyonce.parked set state = 'discarded', settled_at = now()`, 2, own},
		{"payments", `update onlyonce.parked set state = 'resolved', settled_at = now()`, 1, own},
		{"dual", `update onlyonce.parked set error = 'x'`, 3, own},
		{"mine", `update onlyonce.parked set error = 'x'`, 3, own},
		{"ops", `update onlyonce.parked set error = 'x'`, 3, own},
		{"web", `update onlyonce.parked set error = 'x'`, 0, denied},
		{"stock", `update onlyonce.leases set epoch = epoch + 1, nonce = gen_random_uuid()`, 5, own},
		{"stock", `insert into onlyonce.leases (name) values ('ring/outbox2')`, 0, denied},
		{"stock", `update onlyonce.leases set name = 'of nobody else' where name = 'observe'`, 0, denied},
		{"stock", `insert into onlyonce.leases (name) values ('relay/payments/1')`, 0, denied},
		{"stock", `insert into onlyonce.leases (name) values ('http/2')`, 0, denied},
		{"stock", `update onlyonce.leases set name = 'relay/payments/2' where name = 'observe'`, 0, denied},
		{"payments", `update onlyonce.leases set epoch = epoch + 1`, 2, own},
		{"payments", `insert into onlyonce.leases (name) values ('cursor/s/orders/1')`, 0, denied},
		{"payments", `insert into onlyonce.leases (name, until) values ('filters/consumer_keys', 'infinity')`, 0, denied},
		{"web", `update onlyonce.leases set until = null`, 1, own},
		{"web", `delete from onlyonce.leases`, 1, own},
		{"rot", `update onlyonce.leases set epoch = epoch + 1`, 3, own},
		{"rot", `insert into onlyonce.leases (name) values ('cursor/s/orders/1')`, 0, denied},
		{"dash", `update onlyonce.leases set epoch = epoch + 1`, 3, own},
		{"dual", `update onlyonce.leases set epoch = epoch + 1`, 7, own},
		{"mine", `update onlyonce.leases set epoch = epoch + 1`, 11, own},
		{"ops", `update onlyonce.leases set epoch = epoch + 1`, 11, own},
	} {
		tag, err := c.as(x.login).Exec(t.Context(), x.sql)
		if guard.SQLState(err) != x.code || tag.RowsAffected() != x.rows {
			t.Errorf("%s: %s: %d rows, want %d; %v", x.login, x.sql, tag.RowsAffected(), x.rows, err)
		}
	}
	// Every role that claims keys sees everything that is parked.
	for _, login := range []string{"stock", "payments", "mine", "ops"} {
		var n int
		if err := c.as(login).QueryRow(t.Context(), `select count(*) from onlyonce.parked`).Scan(&n); err != nil || n != 3 {
			t.Errorf("%s sees %d parked rows, want 3; %v", login, n, err)
		}
	}
}

// If a right that the engine needs is taken away, the check names it. Every table of the schema is
// in the file.
func TestS2MissingRightsAreNamed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for _, x := range []struct{ role, login, take, names string }{
		{
			"onlyonce_app",
			"stock",
			`delete on onlyonce.progress`,
			"grant onlyonce_app to stock (docs/roles.sql has the role): it lacks 1 right: DELETE on onlyonce.progress",
		},
		{
			"onlyonce_app",
			"stock",
			`select, insert on onlyonce_segments.consumer_keys_0`,
			"INSERT on onlyonce_segments.consumer_keys_0, SELECT on onlyonce_segments.consumer_keys_0",
		},
		{"onlyonce_app", "stock", `select on onlyonce.schema_version`, "SELECT on onlyonce.schema_version"},
		{"onlyonce_app", "stock", `usage on schema onlyonce`, "USAGE on schema onlyonce"},
		{"onlyonce_app", "stock", `usage on schema onlyonce_segments`, "USAGE on schema onlyonce_segments"},
		{"onlyonce_relay", "payments", `update on onlyonce.lane_cursors`, "UPDATE on onlyonce.lane_cursors"},
		{"onlyonce_relay", "payments", `update (response_body) on onlyonce.parked`, "UPDATE (response_body) on onlyonce.parked"},
		{"onlyonce_app", "stock", `update (state) on onlyonce.parked`, "UPDATE (state) on onlyonce.parked"},
		{"public", "stock", `execute on function onlyonce.seal()`, "EXECUTE on function onlyonce.seal"},
	} {
		c.exec(fmt.Sprintf(`revoke %s from %s`, x.take, x.role))
		as := preflight.App
		if x.login == "payments" {
			as = preflight.Relay
		}
		if _, err := preflight.Check(t.Context(), c.as(x.login), as); err == nil || !strings.Contains(err.Error(), x.names) {
			t.Errorf("without %s: %v", x.take, err)
		}
		c.runFile()
	}
	c.exec(`grant execute on function onlyonce.seal() to public`)
	for login, as := range map[string]preflight.Role{"stock": preflight.App, "payments": preflight.Relay} {
		if _, err := preflight.Check(t.Context(), c.as(login), as); err != nil {
			t.Errorf("%s, after the file was run again: %v", login, err)
		}
	}

	file, err := os.ReadFile("../../docs/roles.sql")
	if err != nil {
		t.Fatal(err)
	}
	rows, err := c.super.Query(
		t.Context(),
		`select relname::text from pg_class
			where relnamespace in ('onlyonce'::regnamespace, 'onlyonce_segments'::regnamespace) and relkind in ('r', 'p', 'v')`,
	)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	segment := regexp.MustCompile(`_\d$`) // the file has their rings
	for _, table := range tables {
		if !strings.Contains(string(file), "'"+table+"'") && !strings.Contains(string(file), "'"+segment.ReplaceAllString(table, "")+"'") {
			t.Errorf("docs/roles.sql says nothing about onlyonce.%s: who needs which right on it?", table)
		}
	}
}
