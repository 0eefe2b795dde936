package ops

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
)

// storedSQL finds what is stored of a call. In: key. One row for each place: log (id, sink, state
// of the view onlyonce.calls) and parked (its own id). A call that was redriven under a new key is
// found by either one. The log is read whole, without its bodies. The index on onlyonce.parked
// (kind, key) holds unsettled rows only, so settled ones that no row of the log leads to are looked
// for in the whole table, which holds failures. By a new key, the log's row is found by its id
// within its sink and lane.
const storedSQL = `
with keyed as materialized (
  select r.slot,
         r.sink,
         r.lane,
         r.xid,
         r.batch,
         r.id
    from ` + reports.BatchesOfKey + ` b
   cross join lateral (select *
                         from onlyonce.outbox_log r
                        where r.slot = b.slot
                          and r.sink = b.sink
                          and r.lane = b.lane
                          and r.xid = b.xid
                          and r.batch = b.batch
                       offset 0) r
   where r.key = $1::uuid),
parked as materialized (
  select p.id,
         p.row_id,
         p.sink,
         p.lane,
         p.state,
         p.erased_at,
         octet_length(p.body) + coalesce(octet_length(p.response_body), 0) as bytes
    from onlyonce.parked p
   where p.kind = 'call' and (p.key = $1::uuid or p.first_key = $1::uuid or p.row_id in (select r.id from keyed r))),
log as materialized (
  select * from keyed
  union
  select b.slot,
         b.sink,
         b.lane,
         b.xid,
         b.id,
         p.row_id
    from parked p
    join onlyonce.batches b on b.sink = p.sink and b.lane = p.lane and p.row_id between b.id and b.id + b.n - 1)
select 'log' as "table",
       c.id,
       c.key::text as key,
       c.sink,
       c.state,
       c.erased_at,
       octet_length(r.body)::bigint as bytes,
       null::bigint as partition,
       null::text as event
  from log g
 cross join lateral (select *
                       from onlyonce.outbox_log r
                      where r.slot = g.slot
                        and r.sink = g.sink
                        and r.lane = g.lane
                        and r.xid = g.xid
                        and r.batch = g.batch
                        and r.id = g.id
                     offset 0) r
 cross join lateral (select *
                       from onlyonce.calls c
                      where c.sink = g.sink and c.lane = g.lane and c.xid = g.xid and c.batch = g.batch and c.id = g.id
                     offset 0) c
union all
select 'parked',
       p.id,
       null,
       coalesce(p.sink, ''),
       case p.state when 'resolved' then 'delivered' else p.state end,
       p.erased_at,
       coalesce(p.bytes, 0),
       null,
       null
  from parked p
order by 1 desc, 2`

// Stored is one place where a call or an event is stored.
type Stored struct {
	Table     string  `json:"table" doc:"log or parked"`
	Partition *int64  `json:"partition" doc:"of an event"`
	ID        int64   `json:"id" doc:"of the row in that place: of an event in the log its offset"`
	Key       *string `json:"key" doc:"the call's idempotency key, of a row of the log; else nil"`
	Sink      string  `json:"sink" doc:"of a call"`
	Event     *string `json:"event" doc:"an event's id"`
	// of a call: pending, delivered, waiting, retrying, blocked, reconcile or discarded; of an
	// event: handled, unread or before SCOPE, or of the parked row
	State    string     `json:"state" doc:"above"`
	Bytes    int64      `json:"bytes" doc:"size of its body, and of the answer that is kept"`
	ErasedAt *time.Time `json:"erased_at" doc:"nil: its body was not erased"`
}

// Erased is the result of [EraseCall], [EraseEvents] and [EraseParked].
type Erased struct {
	Audited

	Key   string   `json:"key,omitempty" doc:"of a call"`
	Topic string   `json:"topic,omitempty" doc:"of events"`
	Rows  []Stored `json:"rows" doc:"as they were"`
}

func readStored(ctx context.Context, tx pgx.Tx, key string) ([]Stored, error) {
	rows, err := reports.Collect[Stored](ctx, tx, storedSQL, key)
	return rows, err
}
