package main

import (
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// scene is a database that has grown, and the engines' statements that meet it.
type scene struct {
	name   string
	fill   []string // statements; ROWS stands for the number of rows. No trigger fires
	probes []probe
}

// probe is a statement of an engine.
type probe struct {
	name string // in the output; empty: sql
	sql  string // a constant of the source, see sources.statement, or a statement
	args []any
	left string // counts the work that is left; empty: the statement works off none
}

const (
	// oneSink makes a sink with its lanes, whose cursors stand before everything.
	oneSink = `insert into onlyonce.sinks (name) values ('s');
  insert into onlyonce.leases (name) select 'relay/s/' || n from generate_series(0, 15) n;
  insert into onlyonce.sink_lanes (id, sink, lane)
    select id, 's', split_part(name, '/', 3)::smallint from onlyonce.leases;
  insert into onlyonce.lane_cursors (id, target, version) select id, pg_current_snapshot(), 1 from onlyonce.sink_lanes;`
	// oldCalls closes and opens the log's segments after the calls of the scene were parked.
	oldCalls = `
update onlyonce.segments
   set opened_at = clock_timestamp() where ring = 'outbox'; update onlyonce.watched set at = clock_timestamp();`
	// parkedCalls inserts calls. State, next_attempt_at, settled_at, tenant and order_key follow.
	parkedCalls = `insert into onlyonce.parked (
  kind,
  scope,
  sink,
  lane,
  row_id,
  key,
  call_name,
  method,
  target,
  body,
  partition,
  "offset",
  parked_at,
  record_time,
  reason,
  state,
  next_attempt_at,
  settled_at,
  tenant,
  order_key
)
  select 'call',
         'c',
         's',
         i % 16,
         i,
         gen_random_uuid(),
         'n',
         'POST',
         '/',
         '\x7b7d',
         i % 16,
         i,
         now() - interval '40 days',
         now() - interval '40 days',
         'failed', `
	from = ` from generate_series(1, ROWS) i`
	// parkedMessages is the same for messages of one partition.
	parkedMessages = `insert into onlyonce.parked (
  kind,
  scope,
  topic,
  partition,
  "offset",
  key,
  body,
  cluster_id,
  record_time,
  reason,
  state,
  next_attempt_at,
  order_key
)
  select 'message',
         'c',
         't',
         0,
         i,
         gen_random_uuid(),
         '\x7b7d',
         'k',
         now(),
         'failed', `
	key = `md5((i % 1000)::text)::uuid` // one of 1,000 ordering keys
	// oneCursor makes a cursor, lease 1, with an owner.
	oneCursor = `insert into onlyonce.leases (name, epoch, nonce) values ('cursor', 1, '00000000-0000-0000-0000-000000000001');
  insert into onlyonce.cursors (
    id,
    scope,
    topic,
    partition,
    start_offset,
    start_policy,
    run_start
  ) values (
    1,
    'c',
    't',
    0,
    0,
    'earliest',
    0
  );`
	nonce = "00000000-0000-0000-0000-000000000001"
)

var (
	none   = []int64{}
	noText = []string{}
	noKeys = [][16]byte{}
	never  *time.Duration
)

// parked returns the arguments of the statements about parked calls: the rates for which calls
// wait, and the tenants that have one.
func parked(rates, limited []string) []any {
	permits := make([]int32, len(rates))
	for i := range permits {
		permits[i] = 100
	}
	return []any{pgx.NamedArgs{
		"sink":              "s",
		"lane":              3,
		"slots":             100,
		"reconciles":        true,
		"picked":            none,
		"late":              none,
		"keys":              noKeys,
		"start_window":      never,
		"lease_ttl":         time.Minute,
		"waiting":           rates,
		"permits":           permits,
		"tenants":           limited,
		"each":              false,
		"prefixes":          none,
		"prefixes_calls_of": noText,
		"most":              1000,
	}}
}

var nextDue = probe{sql: "outbox.nextDueSQL", args: parked(nil, noText)}

var pollWork = probe{sql: "outbox.pollWorkSQL", args: []any{"s", []int16{0, 3, 15}, true, []int64{1, 1, 1}}}

var poll = probe{
	sql: "consumer.pollSQL",
	args: []any{
		"c",
		[]string{"t"},
		[]int32{0},
		[]int64{1},
		[]int64{1},
		[]string{nonce},
		[]int32{0},
		[]*time.Time{nil},
		nonce,
		"host",
		1,
		nil,
		nil,
	},
}

// scenes are all. A statement that is not here works on a number of rows that something else
// bounds: a batch, a window, a page, or a key.
var scenes = []scene{
	{
		"settled calls whose retention has passed",
		[]string{oneSink, parkedCalls + `'resolved', null, now() - interval '40 days', 'a', null` + from, oldCalls},
		[]probe{
			{sql: "outbox.purgeSQL", args: []any{"s", 30 * 24 * time.Hour, 1000, never}, left: `select count(*) from onlyonce.parked`},
			nextDue, pollWork,
		},
	},
	{
		"settled calls that the log still has",
		[]string{oneSink, parkedCalls + `'resolved', null, now() - interval '40 days', 'a', null` + from,
			`
update onlyonce.segments
   set opened_at = now() - interval '50 days' where ring = 'outbox'; update onlyonce.watched set at = clock_timestamp()`},
		[]probe{
			{sql: "outbox.purgeSQL", args: []any{"s", 30 * 24 * time.Hour, 1000, never}},
		},
	},
	{
		"calls that are due",
		[]string{oneSink, parkedCalls + `'retrying', now() - i * interval '1 ms', null, 'a', md5(i::text)::uuid` + from},
		[]probe{
			nextDue, pollWork,
			{
				sql:  "outbox.setAsideSQL",
				args: parked(nil, []string{"a"}),
				left: `select count(*) from onlyonce.parked where lane = 3 and waits_for is null`,
			},
			{
				sql:  "outbox.pickSQL",
				args: parked(nil, noText),
				left: `select count(*) from onlyonce.parked where lane = 3 and next_attempt_at <= now()`,
			},
			{name: "outbox.pickSQL, the tenant has a rate", sql: "outbox.pickSQL", args: parked([]string{"tenant a"}, []string{"a"})},
			{sql: "outbox.waitingSQL", args: []any{"s", "", 0}},
			{sql: "outbox.sweepSQL", args: []any{"s", 3, nil, 100}},
		},
	},
	{"calls that are scheduled for next week", []string{oneSink, strings.Replace(parkedCalls, "'failed'", "'scheduled'", 1) +
		`'retrying', now() + interval '7 days' + i * interval '1 ms', null, 'a', md5(i::text)::uuid` + from}, []probe{
		nextDue, pollWork,
		{sql: "outbox.pickSQL", args: parked(nil, noText)},
	}},
	{
		"calls that are tried again tomorrow",
		[]string{oneSink, parkedCalls + `'retrying', now() + interval '1 day' + i * interval '1 ms', null, 'a', md5(i::text)::uuid` + from},
		[]probe{
			nextDue, pollWork,
			{sql: "outbox.pickSQL", args: parked(nil, noText)},
		},
	},
	{
		"calls that wait for others of their ordering keys",
		[]string{oneSink, parkedCalls + `case when i <= 1000 then 'waiting' else 'blocked' end, null, null, 'a', ` + key + from,
			`insert into onlyonce.batches (
  slot,
  lane,
  n,
  bytes,
  sink,
  keys,
  order_key,
  tenant,
  scope,
  name,
  method,
  target,
  header,
  body
)
  select (select cur from onlyonce.rings where name = 'outbox'),
         0,
         1,
         2,
         's',
         array[gen_random_uuid()],
         md5('7')::uuid,
         'a',
         'c',
         'n',
         'POST',
         '/',
         '',
         '\x7b7d'
    from generate_series(1, 1024);
  update onlyonce.lane_cursors set target = pg_current_snapshot()`},
		[]probe{
			nextDue, pollWork,
			{name: "outbox.firstBatchesSQL, 1,024 of a key", sql: "outbox.firstBatchesSQL", args: []any{1, 1, 0, 0, 8192, 1024}},
			{sql: "outbox.sweepSQL", args: []any{"s", 3, nil, 100}},
			{sql: "select onlyonce.promote(md5('7')::uuid)"},
		},
	},
	{
		"calls that wait for an operator",
		[]string{oneSink, parkedCalls + `'reconcile', null, null, 'a', md5(i::text)::uuid` + from},
		[]probe{nextDue, pollWork, {sql: "outbox.pickSQL", args: parked(nil, noText)}},
	},
	{
		"calls in the log",
		[]string{
			oneSink,
			`insert into onlyonce.batches (
  slot,
  lane,
  n,
  bytes,
  sink,
  keys,
  tenant,
  scope,
  name,
  method,
  target,
  header,
  body
)
  select (select cur from onlyonce.rings where name = 'outbox'),
         i % 16,
         1,
         2,
         's',
         array[gen_random_uuid()],
         'a',
         'c',
         'n',
         'POST',
         '/',
         '',
         '\x7b7d'` + from,
			`update onlyonce.lane_cursors set target = pg_current_snapshot()`,
		},
		[]probe{
			pollWork,
			{sql: "outbox.firstBatchesSQL", args: []any{1, 1, 0, 0, 8192, 64}},
			{sql: "outbox.collectRefsSQL", args: []any{1, 1, 0, 0, 8192}},
			{sql: "select onlyonce.index_calls(5000)", left: `select ROWS - count(*) from onlyonce.call_keys`},
			{sql: "internal/ring.carrySinkSQL", args: []any{""}},
		},
	},
	{
		"messages that are due",
		[]string{oneCursor, parkedMessages + `'retrying', now() - i * interval '1 ms', md5(i::text)::uuid` + from},
		[]probe{
			{
				sql:  "consumer.takeParkedSQL",
				args: []any{1, 1, nonce, "c", "t", 0, 60.0, 86400.0},
				left: `select count(*) from onlyonce.parked where next_attempt_at <= now()`,
			},
			{sql: "consumer.promoteAllSQL", args: []any{"c", "t", 0, nil, 100}},
		},
	},
	{
		"messages that are tried again tomorrow",
		[]string{oneCursor, parkedMessages + `'retrying', now() + interval '1 day' + i * interval '1 ms', md5(i::text)::uuid` + from},
		[]probe{
			{sql: "consumer.takeParkedSQL", args: []any{1, 1, nonce, "c", "t", 0, 60.0, 864000.0}},
			poll,
		},
	},
	{"messages that wait for others of their ordering keys", []string{oneCursor,
		parkedMessages + `case when i <= 1000 then 'waiting' else 'blocked' end, null, ` + key + from}, []probe{
		poll,
		{sql: "consumer.takeParkedSQL", args: []any{1, 1, nonce, "c", "t", 0, 60.0, 86400.0}},
		{sql: "consumer.promoteAllSQL", args: []any{"c", "t", 0, nil, 100}},
	}},
	{"positions and messages that are done", []string{oneCursor,
		`insert into onlyonce.progress (cursor_id, run, from_offset, next_offset) select 1, 0, i, i + 1` + from,
		`
insert into onlyonce.done (
  cursor_id,
  "offset",
  hash,
  run,
  last
)
  select 1,
         i,
         i,
         0,
         false` + from,
		`insert into onlyonce.attempts (cursor_id, "offset", attempts, answers) select 1, i, 1, 0` + from}, []probe{
		{sql: "consumer.pruneSQL", args: []any{1, 0, 0, 0, 1 << 40, 4096}},
		{
			sql:  "consumer.pruneDoneSQL",
			args: []any{1, 1, nonce, 0, 0, 0, 1000, 100},
			left: `select count(*) from onlyonce.done where "offset" < 1000`,
		},
		{sql: "consumer.countAttemptSQL", args: []any{1, 1, nonce, 1 << 40, 0, 0}},
		{sql: "consumer.readCursorSQL", args: []any{"c", "t", 0}},
		{sql: "select onlyonce.take_cursor(1, 1, gen_random_uuid(), 'g', 'k', null, null, '5s')"},
	}},
	{
		"answers that have expired",
		[]string{
			`insert into onlyonce.http_records (
  id,
  tenant,
  scope,
  fingerprint,
  token,
  state,
  response,
  keep,
  created_at,
  completed_at,
  expires_at,
  watched_at
)
  select gen_random_uuid(),
         'a',
         's',
         '\x00',
         gen_random_uuid(),
         'completed',
         '\x00',
         interval '1 day',
         now() - interval '9 days',
         now() - interval '9 days',
         now() - interval '8 days',
         now() - interval '9 days'` + from,
			oldCalls,
		},
		[]probe{
			{sql: "idempotency.purgeSQL", args: []any{500}, left: `select count(*) from onlyonce.http_records`},
			{sql: "idempotency.abandonSQL", args: []any{500}},
		},
	},
	{
		"answers that are kept",
		[]string{
			`insert into onlyonce.http_records (
  id,
  tenant,
  scope,
  fingerprint,
  token,
  state,
  response,
  keep,
  created_at,
  completed_at,
  expires_at,
  watched_at
)
  select gen_random_uuid(),
         'a',
         's',
         '\x00',
         gen_random_uuid(),
         'completed',
         '\x00',
         interval '1 day',
         now(),
         now(),
         now() + interval '1 day',
         now()` + from,
		},
		[]probe{
			{sql: "idempotency.purgeSQL", args: []any{500}},
		},
	},
	{
		"requests whose clients did not come back",
		[]string{oldCalls, `insert into onlyonce.leases (name, epoch, until) select 'http/' || i, 1, now() - interval '9 days'` + from,
			`insert into onlyonce.http_records (
  id,
  tenant,
  scope,
  fingerprint,
  token,
  state,
  lease_id,
  keep,
  created_at
)
  select md5(i::text)::uuid,
         'a',
         's',
         '\x00',
         gen_random_uuid(),
         'running',
         i,
         interval '1 day',
         now() - interval '9 days'` + from,
			`insert into onlyonce.http_steps (record_id, name, done_at, result) select md5(i::text)::uuid, 'x', now(), '\x00'` + from},
		[]probe{
			{
				sql:  "idempotency.abandonSQL",
				args: []any{500},
				left: `select count(*) from onlyonce.http_records where abandoned_at is null`,
			},
			{sql: "idempotency.purgeSQL", args: []any{500}},
		},
	},
	{
		"requests that an operator knows of",
		[]string{oldCalls, `insert into onlyonce.leases (name, epoch, until) select 'http/' || i, 1, now() - interval '9 days'` + from,
			`insert into onlyonce.http_records (
  id,
  tenant,
  scope,
  fingerprint,
  token,
  state,
  lease_id,
  keep,
  created_at,
  abandoned_at
)
  select md5(i::text)::uuid,
         'a',
         's',
         '\x00',
         gen_random_uuid(),
         'running',
         i,
         interval '1 day',
         now() - interval '9 days',
         now() - interval '8 days'` + from,
			`insert into onlyonce.http_steps (record_id, name, done_at, result) select md5(i::text)::uuid, 'x', now(), '\x00'` + from},
		[]probe{
			{sql: "idempotency.abandonSQL", args: []any{500}},
		},
	},
	{
		"ids and bodies of webhooks whose retention has passed",
		[]string{oldCalls,
			`insert into onlyonce.webhook_ids (endpoint, key, seen_at) select 'e', gen_random_uuid(), now() - interval '40 days'` + from,
			`
insert into onlyonce.webhook_bodies (endpoint, digest, key, seen_at)
  select 'e', decode(md5(i::text), 'hex'), gen_random_uuid(), now() - interval '40 days'` + from},
		[]probe{
			{sql: "webhook.purgeIDsSQL", args: []any{"e", 30 * 24 * time.Hour, 500}, left: `select count(*) from onlyonce.webhook_ids`},
			{
				sql:  "webhook.purgeBodiesSQL",
				args: []any{"e", 30 * 24 * time.Hour, 500},
				left: `select count(*) from onlyonce.webhook_bodies`,
			},
		},
	},
	{"settled messages, audit rows and objects whose retention has passed", []string{oldCalls,
		changed(parkedMessages, "  order_key\n)", "  order_key,\n  settled_at\n)") +
			`'resolved', null, null, now() - interval '400 days'` + from,
		`insert into onlyonce.audit (at, action, reason) select now() - interval '800 days', 'x', 'x'` + from,
		`insert into onlyonce.webhook_objects select 's', md5(i::text)::uuid, 1, now() - interval '400 days'` + from}, []probe{
		{sql: "internal/retention.purgeParkedSQL", args: []any{1000}, left: `select count(*) from onlyonce.parked`},
		{sql: "internal/retention.purgeAuditSQL", args: []any{1000}, left: `select count(*) from onlyonce.audit`},
		{sql: "internal/retention.purgeObjectsSQL", args: []any{1000}, left: `select count(*) from onlyonce.webhook_objects`},
		{sql: "internal/gauges.overdueSQL"},
	}},
	{"settled messages that are kept, and objects of a scope with a parked event", []string{oldCalls,
		changed(parkedMessages, "  order_key\n)", "  order_key,\n  settled_at\n)") + `'resolved', null, null, now()` + from,
		`insert into onlyonce.parked (kind, state, scope, reason) values ('event', 'waiting', 's', 'x')`,
		`insert into onlyonce.webhook_objects select 's', md5(i::text)::uuid, 1, now() - interval '400 days'` + from}, []probe{
		{sql: "internal/retention.purgeParkedSQL", args: []any{1000}},
		{sql: "internal/retention.purgeObjectsSQL", args: []any{1000}},
	}},
	{"events in the log", []string{`insert into onlyonce.streams (topic, partitions) values ('t', 1);
  insert into onlyonce.event_log (
    slot,
    stream,
    partition,
    "offset",
    tenant,
    id,
    header_names,
    header_values,
    body
  )
  select (select cur from onlyonce.rings where name = 'events'),
         1,
         0,
         i,
         'a',
         i::text,
         '{}',
         '{}',
         '\x7b7d'` + from}, []probe{
		{sql: "internal/eventsource.pageSQL", args: []any{1, 0, 7, 1 << 20}},
		{sql: "internal/eventsource.boundsSQL", args: []any{"t", 0}},
	}},
}
