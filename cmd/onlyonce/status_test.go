package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/onlyonce/onlyonce/migrations"
	"github.com/onlyonce/onlyonce/ops"
)

// populate writes some rows of every kind.
func (f *fixture) populate() {
	f.t.Helper()
	f.exec(`insert into onlyonce.leases (name, epoch, nonce, until) values
		('cursor/stock/orders/0', 4, gen_random_uuid(), null), ('cursor/stock/orders/1', 0, null, null)`)
	f.exec(`insert into onlyonce.cursors (id, scope, topic, partition, group_id, cluster_id, topic_id, start_offset, run_start,
		start_policy,
			released_at)
		select id, 'stock', 'orders', 0, 'g1', 'c1', '00000000-0000-4000-8000-00000000000a'::uuid, 0, 0, 'earliest', null::timestamptz
			from onlyonce.leases where name = 'cursor/stock/orders/0'
		union all select id, 'stock', 'orders', 1, null, null, null, 5, 5, 'committed', clock_timestamp()
			from onlyonce.leases where name = 'cursor/stock/orders/1'`)
	f.exec(`insert into onlyonce.attempts select id, case partition when 0 then 17 else 3 end, 2, 0 from onlyonce.cursors`)
	f.progress("cursor/stock/orders/0", 0, 0, 17)
	f.exec(`insert into onlyonce.parked (kind, state, reason, error, attempts, scope, topic, partition, "offset", sink, call_name, body,
		settled_at)
		values
		('message', 'waiting', 'exhausted', E'first line\nsecond line', 3, 'stock', 'orders', 0, 12, null, null, 'secret body', null),
		('message', 'waiting', 'exhausted', E'red \x1b[31m text', 3, 'stock', 'orders', 0, 13, null, null, '', null),
		('message', 'discarded', 'conflict', '', 0, 'other', 'orders', 1, 2, null, null, '', clock_timestamp()),
		('call', 'reconcile', 'window', repeat('x', 5000), 8, 'stock', null, null, null, 'payments', 'charge', '', null),
		('event', 'waiting', 'permanent', 'bad event', 1, 'hooks', null, null, null, null, null, '', null)`)
}

// calls makes three sinks: payments is held and has two calls to send, gone was held, mail was
// given back.
func (f *fixture) calls() {
	f.t.Helper()
	for _, sink := range []string{"gone", "mail", "payments"} {
		f.lists(sink)
	}
	f.enqueues("payments", "", "old", "new")
	f.exec(`update onlyonce.batches set created_at = clock_timestamp() - interval '30 minutes' where name = 'old'`)
	f.exec(`update onlyonce.leases set epoch = 7, nonce = gen_random_uuid(),
		until = clock_timestamp() + case when name like 'relay/gone/%' then interval '-1 hour' else interval '1 hour' end
		where name like 'relay/%' and name not like 'relay/mail/%'`)
}

// progress commits a batch of an owner, past the seal.
func (f *fixture) progress(lease string, run int, from, next int64) {
	f.t.Helper()
	tx, err := f.pool.Begin(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(f.t.Context()) }()
	for _, q := range []struct {
		sql  string
		args []any
	}{
		{`set local session_replication_role = replica`, nil}, // no trigger: this is not an owner
		{
			`insert into onlyonce.progress select id, $2::integer, $3::bigint, $4::bigint, $4::bigint - 1, 0, '\x01' from onlyonce.leases
				where name = $1`,
			[]any{lease, run, from, next},
		},
	} {
		if _, err := tx.Exec(f.t.Context(), q.sql, q.args...); err != nil {
			f.t.Fatalf("%s: %v", q.sql, err)
		}
	}
	if err := tx.Commit(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
}

// cursors makes the cursors of a scope of topic orders, at 5.
func (f *fixture) cursors(scope string, first, last int) {
	f.t.Helper()
	f.exec(
		`with l as (insert into onlyonce.leases (name) select 'cursor/' || $1::text || '/orders/' || p
			from generate_series($2::int, $3::int) p returning id, name)
		insert into onlyonce.cursors (id, scope, topic, partition, start_offset, run_start, start_policy)
		select id, $1, 'orders', split_part(name, '/', 4)::int, 5, 5, 'earliest' from l`,
		scope,
		first,
		last,
	)
}

// fields are the names of a JSON object, in order.
func fields(t *testing.T, raw []byte) string {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(raw)))
	var names []string
	if _, err := d.Token(); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, name.(string))
		var skipped json.RawMessage
		if err := d.Decode(&skipped); err != nil {
			t.Fatal(err)
		}
	}
	return strings.Join(names, " ")
}

const cursorFields = "id scope topic partition position run start_offset start_policy group cluster_id " +
	"topic_id epoch clean attempts attempt_offset anchor_offset leader_epoch " +
	"retired_at paused replay replay_until replay_resume replay_resend redo_until redo_topic_id done_until"

func TestStatusJSON(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.populate()
	f.calls()
	r := f.run("status", "-json").want(t, statusGood).lines(t, 0)
	if strings.Count(r.out, "\n") != 1 {
		t.Errorf("not one line:\n%s", r.out)
	}
	if got := fields(
		t,
		[]byte(r.out),
	); got != "needs schema_version standby faults cursors owners parts parked outbox outbox_counted relays unheld timed_ahead requests" {
		t.Errorf("fields: %s", got)
	}
	var lists struct {
		Needs, Cursors, Outbox, Relays []json.RawMessage
		Parked                         struct{ Groups []json.RawMessage }
	}
	var report ops.StatusReport
	for _, v := range []any{&lists, &report} {
		if err := json.Unmarshal([]byte(r.out), v); err != nil {
			t.Fatal(err)
		}
	}
	for want, row := range map[string]json.RawMessage{
		cursorFields:                lists.Cursors[0],
		"kind text remedy commands": lists.Needs[0],
		"count kind state reason scope sink oldest oldest_age_seconds":                    lists.Parked.Groups[0],
		"sink count log retrying blocked oldest_age_seconds last_error":                   lists.Outbox[0],
		"sink epoch until held lanes lanes_held members paused_at paused_by pause_reason": lists.Relays[0],
	} {
		if got := fields(t, row); got != want {
			t.Errorf("fields %s, want %s", got, want)
		}
	}
	good := report.SchemaVersion == migrations.Latest &&
		len(report.Cursors) == 2 &&
		report.Cursors[0].Position == 17 &&
		report.Cursors[1].Position == 5
	if !good {
		t.Errorf("cursors: %+v", report.Cursors)
	}
	c := report.Cursors[0]
	good = c.Attempts == 2 && *c.AttemptOffset == 17 && *c.Group == "g1" && !c.Clean
	if !good {
		t.Errorf("cursor: %+v", c)
	}
	if c := report.Cursors[1]; c.Attempts != 0 || c.AttemptOffset != nil || c.Group != nil {
		t.Errorf("attempts of a message that lies behind are shown: %+v", c)
	}
	counts := map[string]int64{}
	for _, p := range report.Parked.Groups {
		counts[p.Kind+" "+p.Reason+" "+p.State] = p.Count
	}
	for _, o := range report.Outbox {
		counts[o.Sink+" pending"] = o.Count
		if o.OldestAgeSeconds == nil || *o.OldestAgeSeconds < 1800 || *o.OldestAgeSeconds > 3600 {
			t.Errorf("age of %+v", o)
		}
	}
	for what, want := range map[string]int64{"message exhausted waiting": 2, "call window reconcile": 1,
		"event permanent waiting": 1, "payments pending": 2} {
		if counts[what] != want {
			t.Errorf("%s: %d, want %d", what, counts[what], want)
		}
		delete(counts, what)
	}
	if len(counts) > 0 {
		t.Errorf("more: %v", counts)
	}
	p := report.Parked
	good = p.Counted && p.Settled != nil && *p.Settled == 1 && !p.SettledMore
	if !good {
		t.Errorf("settled: %+v", p)
	}
	held := map[string]bool{}
	for _, l := range report.Relays {
		held[l.Sink] = l.Held
	}
	good = len(held) == 3 && !held["mail"] && !held["gone"] && held["payments"]
	if !good {
		t.Errorf("relays: %v", held)
	}
}

func TestStatusForPeople(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.run("status").want(
		t,
		statusGood,
		fmt.Sprintf("schema version %d", migrations.Latest),
		"Nothing needs you.\n\nCursors: 0 partitions",
		"Parked: 0 not settled",
		"Calls: 0 not delivered, 0 sinks",
	)
	f.populate()
	f.calls()
	f.columns = 80
	r := f.run("status", "-v").want(
		t, statusGood, "4 things need you:\n- no consumer runs: scope stock, 2 partitions",
		"Cursors: 2 partitions", "parked: sink payments, 1 call of unknown outcome (1 window)",
		"\n  onlyonce parked list -scope stock -kind message -state waiting\n",
		"Parked: 4 not settled, 1 settled", "Calls: 2 not delivered, 3 sinks", "2 at 17", "30m",
		"Processes: 0",
	).lines(t, 0).fits(t, 80)
	t.Log("\n" + r.out)
}

// Rows that consumer processes have written about themselves: one process lives, and one was killed
// an hour ago.
func TestStatusOfProcesses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`insert into onlyonce.owners (id, scope, host, pid, seen_at, partitions) values
		(gen_random_uuid(), 'stock', 'pod-1', 7, clock_timestamp(), '[
			{"topic": "orders", "partition": 0, "epoch": 3, "position": 90, "high_watermark": 100, "lag": 10, "last_stable": 90,
			"waiting_for": 120, "last_batch_age": 2.5,
			 "blocked_by": {"offset": 90, "key": "0a0b", "for": 30, "done": 8}},
			{"topic": "orders", "partition": 1, "epoch": 3, "position": 5, "high_watermark": 25, "lag": 20, "halted": "gap",
			"detail": "the log begins at 9", "halted_for": 3600,
				"resolve": "to resolve it: onlyonce cursor adopt -scope stock -topic orders -partition 1 -at OFFSET -reason WHY",
				"commands": ["onlyonce cursor adopt -scope stock -topic orders -partition 1 -at OFFSET -reason WHY"]}]'),
		(gen_random_uuid(), 'mail', 'pod-3', 9, clock_timestamp(),
		(select jsonb_agg(jsonb_build_object('topic', 'orders', 'partition', p, 'epoch', 1, 'position', 5,
			'high_watermark', 25, 'lag', 20, 'halted', 'foreign-group', 'detail', 'it is of group mail-1', 'halted_for', 60,
			'resolve',
			'if the group was renamed, stop the old one, and then: onlyonce cursor adopt -scope mail -topic orders -partition '
				|| p || ' -group mail-2 -reason WHY',
			'remedy', 'if the group was renamed, stop the old one, and then',
			'commands',
			jsonb_build_array('onlyonce cursor adopt -scope mail -topic orders -partition ' || p || ' -group mail-2 -reason WHY'),
			'for_topic', jsonb_build_array('onlyonce cursor adopt -scope mail -topic orders -group mail-2 -reason WHY')))
			from unnest(array[1, 4, 3]) p)),
		(gen_random_uuid(), 'mail', 'pod-4', 2, clock_timestamp(),
		(select jsonb_agg(jsonb_build_object('topic', 'orders', 'partition', p, 'epoch', 0, 'position', 5,
			'high_watermark', 25, 'lag', 20)) from generate_series(1, 4) p)),
		(gen_random_uuid(), 'bills', 'pod-5', 2, clock_timestamp(),
		(select jsonb_agg(jsonb_build_object('topic', 'bills', 'partition', p, 'epoch', 1, 'position', 70 + p,
			'high_watermark', 99, 'lag', 20, 'halted', case p % 2 when 0 then 'new-topic' else 'everything-fails' end, 'detail',
			'see there', 'halted_for', 60,
			'for_topic',
			case p % 2 when 0
			then jsonb_build_array('onlyonce cursor adopt -scope bills -topic bills -halted new-topic -at first -reason WHY')
				else jsonb_build_array('onlyonce cursor adopt -scope bills -topic bills -halted everything-fails -at position -reason WHY',
					'onlyonce parked redrive -scope bills -topic bills -kind message -parked-for no-key -limit 10000 -reason WHY') end))
					from generate_series(0, 59) p)),
		(gen_random_uuid(), 'bills', 'pod-6', 2, clock_timestamp() - interval '1 minute', '[]'),
		(gen_random_uuid(), 'bills', 'pod-6', 3, clock_timestamp() - interval '2 minutes', '[]'),
		(gen_random_uuid(), 'bills', 'pod-6', 4, clock_timestamp() - interval '3 minutes', '[]'),
		(gen_random_uuid(), 'stock', 'pod-2', 8, clock_timestamp() - interval '1 hour', '[
			{"topic": "orders", "partition": 2, "epoch": 3, "position": 5, "high_watermark": 9, "lag": 4, "halted": "blocked",
				"detail": "of the past", "halted_for": 1}]')`)
	f.columns = 80
	r := f.run("status").want(
		t, statusGood, "5 things need you:\n- halted: scope bills",
		"\n- crashing: scope bills, 3 processes ended without a stop within 2m of their",
		"\n- halted: scope stock, orders/1, gap for 1h: the log begins at 9\n", "Processes: 7",
		"\n1 more ended without a stop, over 5 minutes ago\n",
		"scope bills, 30 partitions of bills (0, 2,",
		"\n  onlyonce cursor adopt -scope bills -topic bills -halted new-topic -at first \\\n",
		"\n  onlyonce cursor adopt -scope bills -topic bills -halted everything-fails -at \\\n      "+
			"position -reason WHY\n  onlyonce parked redrive -scope bills -topic bills -kind message -parked-for \\\n",
		"pod-1",
		"\n  onlyonce cursor adopt -scope stock -topic orders -partition 1 -at OFFSET \\\n",
		"3 partitions of orders (1, 3, 4)",
		"\n  onlyonce cursor adopt -scope mail -topic orders -group mail-2 -reason WHY\n",
		"waiting: stock orders/0, at offset 90 for 2m",
		"blocked: stock orders/0, by the message at offset 90 (ordering key 0a0b) for",
		"8 messages above it done", "(silent)",
	).fits(t, 80)
	// While a partition changes its owner it counts once, and one whose owner died keeps its lag.
	f.cursors("mail", 1, 4)
	f.cursors("stock", 0, 2)
	for _, want := range []string{` mail +orders +4 +4 of 4 +80 `, ` stock +orders +3 +2 of 3 +34 or more `} {
		if sums := f.run("status").want(
			t,
			statusGood,
		).out; !regexp.MustCompile(strings.ReplaceAll(want, " +", `\s+`)[1:]).MatchString(sums) {
			t.Errorf("%s is not in\n%s", want, sums)
		}
	}
	if strings.Contains(r.out, "of the past") {
		t.Errorf("a halt of a process that is silent is shown as one of the present:\n%s", r.out)
	}
	t.Log("\n" + r.out)
	var report ops.StatusReport
	if err := json.Unmarshal([]byte(f.run("status", "-json").want(t, statusGood).out), &report); err != nil || len(report.Owners) != 8 {
		t.Errorf("%+v, %v", report.Owners, err)
	}
}

func TestStatusEmptyListsAreLists(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := f.run("status", "-json").want(t, statusGood)
	if strings.Contains(r.out, "null") {
		t.Errorf("null for an empty list: %s", r.out)
	}
}

// A sink without a holder does not count as a relay, and relays that list a sink are counted.
func TestStatusOfRelays(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`insert into onlyonce.sinks (name) values ('a/b'), ('mail');
		insert into onlyonce.leases (name) select 'relay/' || s || '/' || n from unnest(array['a%2Fb', 'mail']) s, generate_series(0, 15) n;
		with made as (insert into onlyonce.sink_lanes (id, sink, lane)
		select id, replace(split_part(name, '/', 2), '%2F', '/'), split_part(name, '/', 3)::smallint from onlyonce.leases returning id)
		insert into onlyonce.lane_cursors (id) select id from made;
		update onlyonce.leases set nonce = gen_random_uuid(), until = clock_timestamp() + interval '1 minute'
		where starts_with(name, 'relay/a%2Fb/');
		insert into onlyonce.leases (name, nonce, until)
		values ('relays/a%2Fb/0', gen_random_uuid(), clock_timestamp() + interval '1 minute'),
			('relays/a%2Fb/1', gen_random_uuid(), clock_timestamp() + interval '1 minute'),
			('relays/mail/0', null, clock_timestamp() - interval '1 minute')`)
	r := f.run("status").want(t, statusGood, "Calls: 0 not delivered, 2 sinks", "16 of 16", "0 of 16")
	if strings.Contains(r.out, "Relays:") {
		t.Errorf("%s", r.out)
	}
}

// O5: calls in lanes that no relay takes are named, although a relay lists the sink and sends the
// calls of other lanes.
func TestO5LanesWithoutARelay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.lists("events")
	f.enqueues("events", "order-17", "first", "second") // in one lane
	lane := one[string](f, `select distinct 'relay/events/' || lane from onlyonce.batches`)
	f.exec(`insert into onlyonce.leases (name, nonce, until)
		values ('relays/events/0', gen_random_uuid(), clock_timestamp() + interval '1 minute');
		update onlyonce.leases set nonce = gen_random_uuid(), until = clock_timestamp() + interval '1 minute' where name <> '` + lane + `'`)
	doctor := func(want ...string) {
		t.Helper()
		r := f.run("doctor", "-copies-within", "1d")
		for _, w := range want {
			if !strings.Contains(r.out, w) {
				t.Errorf("doctor does not say %q:\n%s", w, r.out)
			}
		}
	}
	// Relays may be about to take them.
	f.run("status").want(t, statusGood, "Nothing needs you.", "15 of 16")
	if r := f.run("doctor"); strings.Contains(r.out, "sink events") {
		t.Errorf("%s", r.out)
	}

	const unheld = "2 calls in 1 lane that no relay has held for 5m" // and some seconds
	for how, sql := range map[string]string{
		"given back": `update onlyonce.leases set nonce = null, until = null, freed_at = clock_timestamp() - interval '5 minutes'
			where name = $1`,
		"died": `update onlyonce.leases
			set nonce = gen_random_uuid(), until = clock_timestamp() - interval '5 minutes', freed_at = clock_timestamp() - interval '1 day'
			where name = $1`,
	} {
		f.exec(sql, lane)
		f.run("status").want(t, statusGood, "1 thing needs you",
			"lanes without a relay: sink events, "+unheld,
			"15 of 16 lanes are held, by 1 relay",
			"the logs of the sink's relays",
			"onlyonce outbox status -sink events")
		doctor("sink events: "+unheld, "; relays hold 15 of 16 lanes")
		var got struct {
			Unheld []struct {
				Sink         string
				Calls, Lanes int
				Seconds      float64
			}
		}
		r := f.run("status", "-json").want(t, statusGood)
		good := json.Unmarshal([]byte(r.out), &got) == nil &&
			len(got.Unheld) == 1 &&
			got.Unheld[0].Calls == 2 &&
			got.Unheld[0].Lanes == 1 &&
			got.Unheld[0].Seconds >= 299
		if !good {
			t.Errorf("%s: %+v", how, got)
		}
	}
	f.exec(`update onlyonce.sinks set paused_at = now(), paused_by = 'ann', pause_reason = 'INC-1' where name = 'events'`)
	f.run("status").want(t, statusGood, "Nothing needs you.")
}
