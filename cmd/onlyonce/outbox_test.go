package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/onlyonce/onlyonce/internal/reports"
)

func (f *fixture) outboxStatus(args ...string) (r reports.OutboxReport) {
	f.t.Helper()
	out := f.run(append([]string{"outbox", "status", "-json"}, args...)...).want(f.t, statusGood).lines(f.t, 0).out
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		f.t.Fatal(err)
	}
	return r
}

func TestOutboxStatus(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run("outbox", "status").want(t, statusGood, "Sinks: 0", "Segments: 1, and 5 free", "current").lines(t, 0)
	f.run("outbox", "status", "-sink", "payments").want(t, statusEnvironment, `there is no sink "payments": no relay`)
	f.lists("payments")
	f.lists("idle")
	f.enqueues("payments", "k", "done", "next", "later")
	f.delivers("payments", f.logID("done"))
	f.enqueues("payments", "k", "newest")
	f.enqueues("nobody", "", "u1", "u2")
	f.park("done", "waiting", "rejected")
	f.exec(`update onlyonce.batches set created_at = clock_timestamp() - interval '30 minutes' where name = 'next'`)
	f.exec(`update onlyonce.leases set epoch = 5, nonce = gen_random_uuid(), until = clock_timestamp() + interval '1 hour'
		where name like 'relay/payments/%'`)
	f.run("outbox", "pause", "-sink", "payments", "-reason", "bank\nis down", "-yes").want(t, statusGood)

	r := f.run("outbox", "status").want(
		t, statusGood, "Sinks: 3", "16 of 16 held", "0 of 16 held", "not listed",
		"1 waiting since", "30m", "Sink payments is paused since", "bank is down",
		"Lanes with calls to send: 1", "Segments: 1, and 5 free",
	).lines(t, 0)
	t.Log("\n" + r.out)
	f.run("outbox", "status", "-sink", "idle").want(t, statusGood, "Lanes: 16")
	got := f.outboxStatus()
	if got.Counted != true || len(got.Sinks) != 3 || len(got.Ring) != 6 {
		t.Fatalf("%+v", got)
	}
	idle := got.Sinks[0]
	nobody := got.Sinks[1]
	payments := got.Sinks[2]
	good := idle.Listed &&
		*idle.Pending == 0 &&
		idle.Age == nil &&
		len(idle.Lanes) == 16 &&
		idle.PausedAt == nil
	if !good {
		t.Errorf("%+v", idle)
	}
	if nobody.Listed || *nobody.Pending != 2 || len(nobody.Lanes) != 0 {
		t.Errorf("%+v", nobody)
	}
	good = *payments.Pending == 3 &&
		*payments.Age >= 1800 &&
		len(payments.Parked) == 1 &&
		payments.Parked[0].Count == 1 &&
		*payments.PauseReason == "bank\nis down"
	if !good {
		t.Errorf("%+v", payments)
	}
	for _, l := range payments.Lanes {
		busy := l.Lane == one[int16](f, `select lane from onlyonce.outbox_log where name = 'next'`)
		good := l.Held &&
			l.Epoch == 5 &&
			busy == (*l.Pending == 3) &&
			busy == (*l.InPass == 2)
		if !good {
			t.Errorf("%+v", l)
		}
	}
	g := got.Ring[0]
	good = g.State == "current" &&
		len(g.HeldBy) == 0 &&
		g.Bytes != 0 &&
		g.OpenedAt != nil
	if !good {
		t.Errorf("%+v", g)
	}
	f.run("status").want(t, statusGood, "Calls: 5 not delivered", "16 of 16", "0 of 16")
}

// A segment that cannot be emptied is listed with the reason.
func TestOutboxStatusOfSegments(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.lists("payments")
	f.lists("idle")
	f.enqueues("payments", "k", "a", "b")
	f.enqueues("nobody", "", "u1")
	f.exec(`update onlyonce.rings set cur = 1, closed = '{0}', version = version + 1 where name = 'outbox'`)
	f.exec(`update onlyonce.segments set closed_at = now(), bound = pg_snapshot_xmax(pg_current_snapshot())
		where ring = 'outbox' and slot = 0`)
	f.exec(`update onlyonce.segments set opened_at = now(), use_no = 1 where ring = 'outbox' and slot = 1`)
	why := func(args ...string) string {
		var texts []string
		for _, h := range f.outboxStatus(args...).Ring[0].HeldBy {
			texts = append(texts, h.Sink+":"+h.Why)
		}
		return strings.Join(texts, " ")
	}
	if got := why(); got != "nobody:unlisted payments:behind idle:cursor" {
		t.Errorf("held by %s", got)
	}
	if got := why("-sink", "payments"); got != "payments:behind" {
		t.Errorf("held by %s", got)
	}
	r := f.run("outbox", "status").want(t, statusGood, "closed",
		"no relay lists sink nobody (1 calls)",
		"sink payments is behind (2 calls in 1 lanes)",
		"cursors of sink idle are before it")
	t.Log("\n" + r.out)
	for range 2 { // a pass that takes them, and the next
		f.delivers("payments", 1<<40)
		f.delivers("idle", 1<<40)
	}
	f.exec(`delete from onlyonce.batches where sink = 'nobody'`)
	if got := why(); got != "" {
		t.Errorf("held by %s", got)
	}
}

// If a backlog takes long to count, an operator still gets the rest of the report.
func TestOutboxStatusDoesNotCountForEver(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.lists("payments")
	f.enqueues("payments", "k", "a")
	f.exec(`alter table onlyonce.batches rename to batches_rows`)
	f.exec(`create function slow(t timestamptz) returns timestamptz language plpgsql stable as $$ begin perform pg_sleep(3600);
		return t;
		end $$`)
	f.exec(`create view onlyonce.batches as select slot, lane, id, n, xid, sink, slow(created_at) as created_at from onlyonce.batches_rows`)
	f.count = time.Second // also a busy machine begins and ends the count in time
	f.run("outbox", "status").want(t, statusGood, "0 of 16 held", "pending calls are not counted: that took over 1s")
	f.run("outbox", "status", "-json").want(t, statusGood, `"counted":false`, `"pending":null`)
	f.run("status").want(t, statusGood, "calls are left out")
}

func TestPauseAndResumeASink(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pause := []string{
		"outbox",
		"pause",
		"-sink",
		"payments",
		"-reason",
		"bank down",
	}
	resume := []string{"outbox", "resume", "-sink", "payments", "-reason", "bank up"}
	f.run(append(pause, "-yes")...).want(t, statusEnvironment, `there is no sink "payments": no relay has listed one yet`, "-unlisted")
	f.run("outbox", "pause", "-sink", "ahead", "-unlisted", "-reason", "not before Monday", "-yes").want(t, statusGood, "Done; audit row")
	if n := one[int](f, `select count(*) from onlyonce.sinks where name = 'ahead' and pause_reason = 'not before Monday'`); n != 1 {
		t.Error("not paused")
	}
	f.exec(`delete from onlyonce.sinks; truncate onlyonce.audit`)
	f.lists("mail")
	f.run(append(pause, "-yes")...).want(t, statusEnvironment, `there is no sink "payments": relays have listed mail`)
	f.lists("payments")
	f.run(append(resume, "-yes")...).want(t, statusGood, "is not paused: nothing was changed")
	f.terminal = true
	f.stdin = strings.NewReader("n\n")
	f.run(pause...).want(t, statusFailed, "the answer was no")
	if n := one[int](f, `select count(*) from onlyonce.audit`) + one[int](f, `select count(paused_at) from onlyonce.sinks`); n != 0 {
		t.Error("something was changed")
	}
	f.run(append(pause, "-yes")...).want(t, statusGood, "Pause sink payments", "Done; audit row")
	if n := one[int](
		f,
		`select count(*) from onlyonce.sinks
			where name = 'payments' and paused_at is not null and paused_by = current_user and pause_reason = 'bank down'`,
	); n != 1 {
		t.Error("not paused")
	}
	f.run(append(pause, "-yes")...).want(t, statusGood, "was paused already", "bank down", "nothing was changed")
	r := f.run(append(resume, "-yes")...).want(t, statusGood, "Resume sink payments, paused since", "bank down")
	t.Log("\n" + r.out)
	if n := one[int](f, `select count(*) from onlyonce.sinks where coalesce(paused_at::text, paused_by, pause_reason) is null`); n != 2 {
		t.Error("not resumed")
	}
	if n := one[int](
		f,
		`select count(*) from onlyonce.audit where action in ('outbox pause', 'outbox resume') and detail->>'sink' = 'payments'`,
	); n != 2 {
		t.Errorf("%d audit rows", n)
	}
}

// A rate is set and taken back once; the status shows it with the calls that wait.
func TestOutboxRate(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	set := []string{"outbox", "rate", "-sink", "payments", "-tenant", "acme", "-reason", "their import", "-yes"}
	f.run(append(set, "-per-second", "2.5")...).want(t, statusEnvironment, `there is no sink "payments"`)
	f.lists("payments")
	f.run(set...).want(t, statusEnvironment, "-per-second, -in-flight or both, or -unset")
	f.run(append(set, "-in-flight", "0")...).want(t, statusEnvironment, "-in-flight")
	f.run(append(set, "-unset")...).want(t, statusGood, "No rate was set for it: nothing was changed")
	f.run(append(set, "-per-second", "0")...).want(t, statusEnvironment, "above 0")
	f.run(append(set, "-per-second", "2.5")...).want(t, statusGood, "sink payments, tenant acme to 2.5 calls a second; until now: no rate",
		"Done; audit row")
	f.run(append(set, "-per-second", "2.5")...).want(t, statusGood, "nothing was changed")
	f.run(append(set, "-in-flight", "4")...).want(t, statusGood, "sink payments, tenant acme to 2.5 calls a "+
		"second, 4 under way at once; until now: 2.5 calls a second, set by")
	f.run(append(set, "-in-flight", "4")...).want(t, statusGood, "nothing was changed")
	f.exec(`insert into onlyonce.shares
		values ('payments', 'tenant acme', gen_random_uuid(), 3, 3, now(), now() + interval '10 minutes', 1)`)
	f.exec(`insert into onlyonce.parked (kind, state, reason, scope, tenant, key, sink, lane, row_id, waits_for, waits_since)
		values ('call', 'retrying', 'rate', '', 'acme', gen_random_uuid(), 'payments', 1, 7, 'tenant acme', now())`)
	f.run("outbox", "rate", "-sink", "payments", "-key-prefix", "account-17", "-per-second", "1", "-reason", "refunds", "-yes").want(
		t,
		statusEnvironment,
		`"account-17" must end with its first colon or slash`,
	)
	f.run("outbox",
		"rate",
		"-sink",
		"payments",
		"-key-prefix",
		"account-17:",
		"-tenant",
		"acme",
		"-per-second",
		"1",
		"-reason",
		"refunds",
		"-yes").want(
		t,
		statusEnvironment,
		"give one of -tenant, -each-tenant and -key-prefix",
	)
	f.run("outbox", "rate", "-sink", "payments", "-tenant", "*", "-per-second", "1", "-reason", "all", "-yes").want(
		t,
		statusEnvironment,
		`-tenant: "*" is no name of a tenant: -each-tenant limits each of them`,
	)
	f.run("outbox", "rate", "-sink", "payments", "-each-tenant", "-in-flight", "2", "-reason", "fair", "-yes").want(
		t,
		statusGood,
		"sink payments, each tenant to 2 under way at once; until now: no rate",
	)
	f.run("outbox", "rate", "-sink", "payments", "-key-prefix", "account-17:", "-per-second", "1", "-reason", "refunds", "-yes").want(
		t,
		statusGood,
		"sink payments, ordering keys account-17:... to 1 calls a second",
	)
	f.exec(`insert into onlyonce.rates (sink, configured, held_until) values ('payments', 100, now() + interval '1 minute')`)
	f.run("outbox", "status").want(
		t,
		statusGood,
		"Rate of sink payments: 100 calls a second, by the "+
			"relays' configuration; the remote asked for no calls until",
		"Rate of sink payments, ordering keys account-17:...: 1 calls a second, set by",
		"Rate of sink payments, tenant acme: 2.5 calls a second; 4 under way at once, of which 3 are taken, set by",
		"their import; 1 calls wait",
	)
	f.run("outbox", "status", "-json").want(t, statusGood, `"waiting":1`)
	if r := f.run("doctor"); !strings.Contains(r.out, `calls of sink payments, tenant "acme" wait for their rate`) {
		t.Errorf("doctor says nothing of them:\n%s", r.out)
	}
	f.run(append(set, "-unset")...).want(t, statusGood, "back to the relays' configuration; until now: 2.5 calls a second; 4 under way")
	f.run("outbox", "rate", "-sink", "payments", "-unset", "-reason", "it answers again", "-yes").want(
		t,
		statusGood,
		"until now: 100 calls a second",
	)
	if n := one[int](
		f,
		`select count(*) from onlyonce.rates
			where coalesce(per_second::text, in_flight::text, held_until::text) is null and set_by = current_user`,
	); n != 2 {
		t.Error("something is left")
	}
	if n := one[int](
		f,
		`select count(*) from onlyonce.audit where action = 'outbox rate' and detail->>'sink' = 'payments' and detail->'was' is not null`,
	); n != 6 {
		t.Errorf("%d audit rows", n)
	}
}

func TestErase(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.lists("payments")
	f.enqueues("payments", "k", "delivered", "discarded", "waiting", "pending")
	f.delivers("payments", f.logID("waiting"))
	f.park("discarded", "waiting", "rejected")
	waiting := number(f.park("waiting", "waiting", "rejected"))
	f.discards("-kind", "call", "-sink", "payments", "-name", "discarded").want(t, statusGood)
	key := func(name string) string {
		return one[string](f, `select key::text from onlyonce.outbox_log where name = $1`, name)
	}
	erase := func(name string) result {
		return f.run("outbox", "erase", "-key", key(name), "-reason", "GDPR 118", "-yes")
	}
	// erased are the calls without a body, and parked ones without an answer.
	erased := func() string {
		return one[string](f, `select coalesce(string_agg(t, ' ' order by t), '') from (
			select name as t from onlyonce.outbox_log where body = '' and erased_at is not null
			union all select 'parked-' || call_name from onlyonce.parked
			where body = '' and response_body is null and response_headers is null and erased_at is not null) x`)
	}
	erase("pending").want(t, statusFailed, "is still to be sent", "parked discard").lines(t, 1)
	erase("waiting").want(t, statusFailed, "may still be sent", "`onlyonce parked discard -id "+waiting+"`").lines(t, 1)
	if got := erased(); got != "" {
		t.Errorf("erased: %s", got)
	}
	r := erase("discarded").want(t, statusGood, "log", "parked", "Done: erased")
	t.Log("\n" + r.out)
	if strings.Contains(r.out, "body of") {
		t.Error("the body is shown")
	}
	erase("delivered").want(t, statusGood)
	if got := erased(); got != "delivered discarded parked-discarded" {
		t.Errorf("erased: %s", got)
	}
	erase("delivered").want(t, statusGood, "was erased already: nothing was changed")
	if got := f.states(); got != "delivered:delivered discarded:discarded pending:pending waiting:waiting" {
		t.Errorf("states: %s", got)
	}
	f.run("outbox", "erase", "-key", "00000000-0000-4000-8000-000000000001", "-reason", "x", "-yes").want(
		t,
		statusEnvironment,
		"no call with key",
	)
	f.terminal = true
	f.stdin = strings.NewReader("n\n")
	f.discards("-id", waiting).want(t, statusGood)
	f.run("outbox", "erase", "-key", key("waiting"), "-reason", "x").want(t, statusFailed, "the answer was no")
	if n := one[int](
		f,
		`select count(*) from onlyonce.audit where action = 'outbox erase' and jsonb_array_length(detail->'rows') > 0`,
	); n != 2 {
		t.Errorf("%d audit rows", n)
	}
	// A replay finds the call, and does not compare the erased body.
	f.exec(strings.Replace(enqueueSQL, "array[0::smallint]", "array[1::smallint]", 1), "payments", "k", "delivered")
	if n := one[int](f, `select count(*) from onlyonce.outbox_log where name = 'delivered'`); n != 1 {
		t.Error("it was enqueued again")
	}
}

// A call that was redriven under a new key is found by either key.
func TestEraseByAnyKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.lists("payments")
	for _, by := range []string{"old", "new"} {
		f.enqueues("payments", "", by)
		f.delivers("payments", 1<<40)
		id := f.park(by, "waiting", "rejected")
		f.redrives("-id", number(id), "-new-key").want(t, statusGood)
		sql := `select key::text from onlyonce.outbox_log where name = $1`
		if by == "new" {
			sql = `select key::text from onlyonce.parked where call_name = $1`
		}
		args := []string{"outbox", "erase", "-key", one[string](f, sql, by), "-reason", "x", "-yes"}
		f.run(args...).want(t, statusFailed, "is parked (retrying)", "-id "+number(id))
		f.discards("-id", number(id)).want(t, statusGood)
		f.run(args...).want(t, statusGood)
		if n := one[int](
			f,
			`select count(*) from onlyonce.outbox_log r join onlyonce.parked p on p.row_id = r.id
				where r.name = $1 and r.body = '' and p.body = ''
			and r.erased_at is not null and p.erased_at is not null`,
			by,
		); n != 1 {
			t.Errorf("by the %s key: not erased", by)
		}
	}
}
