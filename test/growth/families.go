package main

import (
	"fmt"
	"strings"

	parkedrows "github.com/onlyonce/onlyonce/internal/parked"
)

const (
	// open are calls of the sink; state, reason, next_attempt_at, settled_at, order_key and
	// waits_for follow.
	calls = `insert into onlyonce.parked (
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
  tenant,
  state,
  reason,
  next_attempt_at,
  timed_at,
  settled_at,
  order_key,
  waits_for,
  waits_since
)
  select 'call',
         'c',
         's',
         i % 16,
         -i,
         gen_random_uuid(),
         'n',
         'POST',
         '/',
         '\x7b7d',
         i % 16,
         -i,
         now() - interval '40 days',
         now() - interval '40 days',
         'a', `
	// messages are those of the partition of the keyed consumer, far above its position; the same
	// follows.
	messages = `insert into onlyonce.parked (
  kind,
  scope,
  topic,
  partition,
  "offset",
  key,
  body,
  cluster_id,
  record_time,
  tenant,
  state,
  reason,
  next_attempt_at,
  timed_at,
  settled_at,
  order_key
)
  select 'message',
         'c',
         't',
         0,
         1000000 + i,
         gen_random_uuid(),
         '\x7b7d',
         'k',
         now(),
         'a', `
	// aside are events that the receiver has set aside.
	aside = `insert into onlyonce.parked (
  kind,
  scope,
  topic,
  partition,
  "offset",
  key,
  body,
  event_id,
  record_time,
  tenant,
  state,
  reason,
  next_attempt_at,
  timed_at,
  settled_at,
  order_key
)
  select 'event',
         'webhook/e',
         'webhook.e',
         0,
         1000000 + i,
         gen_random_uuid(),
         '\x7b7d',
         i::text,
         now(),
         'a', `
	each   = ` from generate_series(1, ROWS) i`
	half   = ` from generate_series(1, ROWS / 2) i`
	ownKey = `md5(i::text)::uuid`
	oneKey = `md5('7')::uuid`
	long   = `now() - interval '400 days'`
)

// families are the large tables. Whoever adds one adds its variants here: a table that no shape
// fills has no statement that is judged.
var families = []family{
	{"parked", []variant{
		{"settled messages and open calls", []string{messages + `'resolved', 'failed', null, null, now(), null` + half,
			calls + `'retrying', 'failed', now() + interval '1 hour', now(), null, ` + ownKey + `, null, null` + half}},
		{"open messages and settled calls", []string{messages + `'waiting', 'exhausted', null, null, null, ` + ownKey + half,
			calls + `'resolved', 'failed', null, null, now(), null, null, null` + half}},
		{"one key", []string{messages + `case i when 1 then 'waiting' else 'blocked' end, 'failed', null, null, null, ` + oneKey + half,
			calls + `case i when 1 then 'waiting' else 'blocked' end, 'failed', null, null, null, ` + oneKey + `, null, null` + half}},
		{"redriven rows of one key whose first is not due", []string{
			messages + `'waiting', 'no-key', null, null, null, ` + oneKey + half,
			calls + `'waiting', 'failed', null, null, null, ` + oneKey + `, null, null` + half,
			of(parkedrows.RedriveSQL, `array(select id from onlyonce.parked where kind = 'message')`),
			of(parkedrows.RedriveCallsSQL, `array(select id from onlyonce.parked where kind = 'call')`,
				`array(select null::uuid from onlyonce.parked where kind = 'call')`, `false`),
			`update onlyonce.parked set next_attempt_at = now() + interval '1 hour' where state = 'retrying'`}},
		{
			"conflicts",
			[]string{
				messages + `'waiting', 'conflict', null, null, null, null` + half,
				aside + `'waiting', 'same-body', null, null, null, null` + half,
			},
		},
		{"due", []string{messages + `'retrying', 'failed', now() - i * interval '1 ms', now() - interval '1 h', null, ` + ownKey + half,
			calls + `'retrying', 'failed', now() - i * interval '1 ms', now() - interval '1 h', null, ` + ownKey + `, null, null` + half}},
		{
			"settled long ago",
			[]string{
				messages + `'resolved', 'failed', null, null, ` + long + `, null` + half,
				calls + `'resolved', 'failed', null, null, ` + long + `, null, null, null` + half,
				oldCalls,
			},
		},
		{"settled long ago, kept by the log", []string{messages + `'resolved', 'failed', null, null, ` + long + `, null` + half,
			calls + `'resolved', 'failed', null, null, ` + long + `, null, null, null` + half,
			`update onlyonce.segments set opened_at = now() - interval '500 days' where ring = 'outbox' and opened_at is not null`}},
		{"waits of rates and unknown outcomes", []string{calls + `'retrying', 'rate', null, null, null, null, 'tenant a', now()` + half,
			calls2(`'reconcile', 'window', null, null, null, `+ownKey+`, null, null`) + half}},
		{
			"due times of a clock that was ahead",
			[]string{messages + `'retrying', 'failed', now() + interval '1 day', now() + interval '1 day', null, ` + ownKey + half,
				calls + `'retrying', 'failed', now() + interval '1 day', now() + interval '1 day', null, ` +
					ownKey + `, null, null` + half},
		},
		{"scheduled calls, settled events", []string{aside + `'discarded', 'same-body', null, null, now(), null` + half,
			calls + `'retrying', 'scheduled', now() + interval '9 days' + i * interval '1 ms', null, null, null, null, null` + half}},
	}},
	{"log", []variant{
		{
			"passed",
			[]string{
				batches("'s'", "i % 16", "null"),
				`update onlyonce.lane_cursors set prev = pg_current_snapshot(), target = pg_current_snapshot()`,
			},
		},
		{"of another sink", []string{batches("'other'", "i % 16", "null")}},
		{"not passed", []string{batches("'s'", "i % 16", "md5(i::text)::uuid")}},
		{"one key", []string{batches("'s'", "3", oneKey)}},
	}},
	{"events", []variant{
		{"of another topic", []string{stream("other"), events("other")}},
		{"of the endpoint", []string{stream("webhook.e"), events("webhook.e")}},
	}},
	{"requests", []variant{
		{"kept", []string{records("'completed'", "now()", "now() + interval '1 day'", "null", "null")}},
		{"expired", []string{records("'completed'", "now() - interval '9 days'", "now() - interval '8 days'", "null", "null"), oldCalls}},
		{
			"to be looked at",
			[]string{records("'completed'", "now() - interval '9 days'", "now() - interval '8 days'", "now() - interval '1 hour'", "null")},
		},
		{
			"not come back",
			[]string{`insert into onlyonce.leases (name, epoch, until) select 'http/-' || i, 1, now() - interval '9 days'` + each,
				records("'running'", "null", "null", "null", "i"), oldCalls},
		},
		{
			"known to an operator",
			[]string{records("'running'", "null", "null", "null", "i"), `update onlyonce.http_records set abandoned_at = now()`},
		},
	}},
	{"operations", []variant{
		{"of another tenant", []string{operations("'other'", "'running'", "null")}},
		{"ended", []string{operations("'a'", "'succeeded'", "now() + interval '1 day'")}},
		{"expired", []string{operations("'a'", "'succeeded'", "now() - interval '8 days'"), oldCalls}},
	}},
	{"ids", []variant{
		{"young", []string{webhooks("'e'", "now()")}},
		{"old", []string{webhooks("'e'", "now() - interval '400 days'"), oldCalls}},
		{"of another endpoint", []string{webhooks("'other'", "now()")}},
	}},
	{"history", []variant{
		{"young", []string{history("now()")}},
		{"old", []string{history("now() - interval '800 days'"), oldCalls}},
	}},
	{"positions", []variant{
		{"of others", []string{positions(`0 - i`)}},
		{"of an earlier run", []string{positions(`(select max(id) from onlyonce.cursors)`)}},
	}},
}

// of is a statement of the engines with these arguments.
func of(sql string, args ...string) string {
	for i, arg := range args {
		sql = strings.ReplaceAll(sql, fmt.Sprintf("$%d", i+1), arg)
	}
	return sql
}

// calls2 is calls whose ids in the log are others.
func calls2(rest string) string {
	return changed(calls, "         -i,\n", "         -1000000 - i,\n") + rest
}

// changed is a statement with a part that is another one. It panics if the statement lacks it.
func changed(sql, part, other string) string {
	if !strings.Contains(sql, part) {
		panic(fmt.Sprintf("growth: the statement lacks %q: %s", part, sql))
	}
	return strings.ReplaceAll(sql, part, other)
}

// batches are calls in the log.
func batches(sink, lane, orderKey string) string {
	return `insert into onlyonce.batches (
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
         ` + lane + `,
         1,
         2,
         ` + sink + `,
         array[gen_random_uuid()],
         ` + orderKey + `,
         'a',
         'c',
         'n',
         'POST',
         '/',
         '',
         '\x7b7d'` + each
}

// stream makes a topic that is not there.
func stream(topic string) string {
	return `insert into onlyonce.streams (topic, partitions) values ('` + topic + `', 1) on conflict do nothing`
}

// events are stored events of a topic, behind those that are there.
func events(topic string) string {
	return `insert into onlyonce.event_log (
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
         s.id,
         0,
         b.next_offset + i - 1,
         'a',
         '-' || i,
         '{}',
         '{}',
         '\x7b7d'
    from onlyonce.streams s, onlyonce.stream_bounds(s.id, 0::smallint) b, generate_series(1, ROWS / 4) i
   where s.topic = '` + topic + `'`
}

// records are requests of the HTTP layer, each with a step.
func records(state, completed, expires, look, lease string) string {
	return `insert into onlyonce.http_records (
  id,
  tenant,
  scope,
  fingerprint,
  token,
  state,
  lease_id,
  response,
  keep,
  created_at,
  completed_at,
  expires_at,
  watched_at,
  look_at,
  look
)
  select md5(i::text)::uuid,
         'a',
         's',
         '\x00',
         gen_random_uuid(),
         ` + state + `,
         ` + lease + `,
         '\x00',
         interval '1 day',
         now() - interval '9 days',
         ` + completed + `,
         ` + expires +
		`,
         now() - interval '9 days',
         ` + look + `,
         interval '1 day'` + each + `;
  insert into onlyonce.http_steps (record_id, name, done_at, result) select md5(i::text)::uuid, 'x', now(), '\x00'` + each
}

func operations(tenant, state, expires string) string {
	return `insert into onlyonce.operations (
  id,
  record_id,
  topic,
  tenant,
  principal,
  name,
  state,
  keep,
  expires_at,
  watched_at
)
  select md5(i::text)::uuid,
         md5(i::text)::uuid,
         'operations',
         ` + tenant + `,
         '',
         'work',
         ` + state + `,
         interval '1 day',
         ` + expires + `,
         now() - interval '9 days'` + each
}

func webhooks(endpoint, seen string) string {
	return `insert into onlyonce.webhook_ids (endpoint, key, seen_at)
              select ` + endpoint + `, gen_random_uuid(), ` + seen + each + `;
  insert into onlyonce.webhook_bodies (endpoint, digest, key, seen_at)
    select ` + endpoint + `, decode(md5(i::text), 'hex'), gen_random_uuid(), ` + seen + each
}

func history(at string) string {
	return `insert into onlyonce.audit (at, action, reason) select ` + at + `, 'x', 'x'` + each + `;
		insert into onlyonce.webhook_objects select 's', md5(i::text)::uuid, 1, ` + at + each
}

// positions are rows of cursors that nobody works on, or of runs that have ended.
func positions(cursor string) string {
	return `insert into onlyonce.progress (cursor_id, run, from_offset, next_offset)
              select ` + cursor + `, -1, i, i + 1` + each + `;
  insert into onlyonce.done (
    cursor_id,
    "offset",
    hash,
    run,
    last
  )
    select ` + cursor + `,
           i,
           i,
           -1,
           false` + each + `;
  insert into onlyonce.attempts (cursor_id, "offset", attempts, answers) select 0 - i, i, 1, 0` + each + `;
  insert into onlyonce_segments.consumer_keys_0 (key, fingerprint) select gen_random_uuid(), 0` + each + `;
  insert into onlyonce_segments.standard_keys_0 (key, fingerprint) select gen_random_uuid(), 0` + each
}
