package outbox

import "github.com/jackc/pgx/v5"

// parkSQL copies calls of the log, whole, to onlyonce.parked, from which they are tried again. In:
// sink, lane; arrays of one length: ids, transactions and ids of their batches, states, reasons,
// errors, attempts, microseconds until they are due (null: never by themselves), whether a call can
// have been made, status, headers and body of an answer that was captured; whether given-up calls
// release their ordering keys; whose rate they wait for (of the arrays' length; empty: none).
//
// By the index batches_new, each batch once. It copies from the log and not from the relay's
// memory, where a sealed body is open.
//
// A call's first time is what it was at the read, because the lane's version is the same, or
// onlyonce.advance raises. A call that is parked already stays as it is. So does one whose key is
// parked under another call, because it is the same one.
const parkSQL = `
insert into onlyonce.parked (kind, state, reason, error, attempts, picks, tenant, scope, key, order_key, order_prefix, sink, lane, partition, row_id, "offset", call_name, method,
                             target, header_names, header_values, body, trace, capture, sealed, next_attempt_at, first_attempt_at, record_time,
                             response_status, response_headers, response_body, waits_for, waits_since)
with d as materialized (
  select * from unnest($3::bigint[], $4::text[]::xid8[], $5::bigint[], $6::text[], $7::text[], $8::text[], $9::int[], $10::bigint[], $11::boolean[], $12::int[],
                       $13::text[], $14::bytea[], $16::text[])
    as d(id, xid, batch, state, reason, error, attempts, delay, called, status, response_headers, response_body, waits_for)),
b as materialized (select distinct xid, batch from d)
select 'call', d.state, d.reason, d.error, d.attempts, d.attempts, r.tenant, r.scope, r.key,
       case when $15 and d.state in ('waiting', 'reconcile') then null else r.order_key end, r.order_prefix, r.sink, r.lane, r.lane, r.id, r.id, r.name, r.method, r.target,
       array(select convert_to(split_part(l, ': ', 1), 'UTF8') from regexp_split_to_table(r.headers, E'\n') with ordinality h(l, n) where l <> '' order by n),
       array(select convert_to(substr(l, strpos(l, ': ') + 2), 'UTF8') from regexp_split_to_table(r.headers, E'\n') with ordinality h(l, n) where l <> '' order by n),
       r.body, r.trace, r.capture, r.sealed, clock_timestamp() + d.delay * interval '1 microsecond', case when d.called then ` + firstCallTime + ` end, r.created_at,
       d.status, d.response_headers, d.response_body, nullif(d.waits_for, ''), case when d.waits_for <> '' then clock_timestamp() end
  from b cross join lateral (select * from onlyonce.outbox_log r where r.sink = $1 and r.lane = $2 and r.xid = b.xid and r.batch = b.batch offset 0) r
  join d on d.id = r.id
  join onlyonce.lanes a on a.sink = $1 and a.lane = $2
 order by r.id
on conflict do nothing`

// queueParking queues the statement that parks calls of the log.
func queueParking(b *pgx.Batch, lane *heldLane, toPark []*callAttempt) {
	n := len(toPark)
	if n == 0 {
		return
	}
	var (
		ids, xids, batches       = make([]int64, n), make([]string, n), make([]int64, n)
		states                   = make([]string, n)
		reasons, errs, attempts  = make([]string, n), make([]string, n), make([]int32, n)
		delays, called, statuses = make([]*int64, n), make([]bool, n), make([]*int32, n)
		headers, bodies          = make([]*string, n), make([][]byte, n)
		waitsFor                 = make([]string, n)
	)
	for i, a := range toPark {
		d := lane.sink.dispositionOf(a)
		ids[i], xids[i], batches[i] = a.ID, a.batch.xid, a.batch.id
		states[i], reasons[i], errs[i] = d.state, d.reason, d.lastError
		if d.due {
			micros := d.delay.Microseconds()
			delays[i] = &micros
		}
		underWay := a.state == attemptUnderWay // it may be made at any moment; a.mayHaveLeft is its goroutine's
		called[i] = underWay || a.mayHaveLeft || a.mayBeCalled
		if (underWay || a.mayHaveLeft) && !d.uncounted {
			attempts[i] = 1
		}
		if a.state == attemptRated {
			waitsFor[i] = a.rated.stored()
		}
		statuses[i], headers[i], bodies[i] = d.answerColumns()
	}
	b.Queue(parkSQL, lane.sink.name, lane.number, ids, xids, batches, states, reasons, errs, attempts, delays, called, statuses, headers, bodies, lane.sink.cfg.PassOn, waitsFor).Exec(ignoreTag)
}
