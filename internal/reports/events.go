package reports

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// StreamsSQL reads the streams of the event log, and who reads them. In: topic (null: any). Out: a
// row for each stream and scope; scope is null if no consumer has begun to read it. By the unique
// indexes of the segments; a partition costs a few probes of each. Parked events are counted by
// parked_position, and those of scopes without a consumer by one look for each scope.
const StreamsSQL = `
with recursive scopes as (
  (select k.scope from onlyonce.parked k where k.settled_at is null and k.scope is not null order by k.scope limit 1)
  union all
  select (select k.scope
            from onlyonce.parked k where k.settled_at is null and k.scope > o.scope order by k.scope limit 1)
    from scopes o where o.scope is not null)
select s.topic,
       s.partitions::bigint as partitions,
       c.scope,
       c.group_id as "group",
       sum(b.next_offset - b.first_offset)::bigint as kept,
       case when c.scope is not null
              then sum(b.next_offset - coalesce(p.next_offset, b.first_offset))::bigint end as behind,
       count(*) filter (where c.scope is not null and p.scope is null) as unread,
       (select count(*) from scopes o cross join lateral (
          select from onlyonce.parked k
           where k.scope = o.scope and k.topic = s.topic and k.kind = 'event' and k.settled_at is null offset 0) k
         where o.scope = c.scope
           or c.scope is null
           and not exists (select 1 from onlyonce.cursors x where x.scope = o.scope and x.topic = s.topic)) as parked
  from onlyonce.streams s
  left join (select distinct x.topic, x.scope, max(x.group_id) over (partition by x.topic, x.scope) as group_id
               from onlyonce.cursors x
              where x.retired_at is null and (x.cluster_id is null or x.cluster_id = 'postgres')) c on c.topic = s.topic
  cross join lateral generate_series(0, s.partitions - 1) n
  cross join lateral onlyonce.stream_bounds(s.id, n::smallint) b
  left join onlyonce.positions p on p.scope = c.scope and p.topic = s.topic and p.partition = n and p.retired_at is null
 where $1::text is null or s.topic = $1
 group by s.id, s.topic, s.partitions, c.scope, c.group_id order by s.topic, c.scope`

// EventRingSQL reads the log's segments. The sizes hold indexes and bodies.
const EventRingSQL = `
select s.slot::bigint as slot,
       case when s.slot = r.cur then 'current'
            when s.slot = r.draining then 'draining'
            when s.slot = r.retired then 'retired'
         when s.slot = any (r.closed) then 'closed'
            else 'free' end as state,
       s.opened_at,
       s.closed_at,
       pg_total_relation_size(format('onlyonce_segments.event_log_%s', s.slot)::regclass) as bytes
  from onlyonce.rings r join onlyonce.segments s on s.ring = r.name
 where r.name = 'events' order by s.slot`

// Stream is a stream of the event log, as one consumer reads it.
type Stream struct {
	Topic      string  `json:"topic"`
	Partitions int64   `json:"partitions"`
	Scope      *string `json:"scope" doc:"nil: no consumer has begun to read it"`
	Group      *string `json:"group"`
	Kept       int64   `json:"kept" doc:"events that the log holds"`
	Behind     *int64  `json:"behind" doc:"of those, events that the consumer has not handled; nil: no consumer"`
	Unread     int64   `json:"unread_partitions" doc:"partitions that the consumer has not begun to read"`
	Parked     int64   `json:"parked" doc:"its events that are parked and not settled"`
}

// EventSegment is a table of the event log.
type EventSegment struct {
	Slot     int64      `json:"slot"`
	State    string     `json:"state" doc:"current, draining, closed, retired or free"`
	OpenedAt *time.Time `json:"opened_at"`
	ClosedAt *time.Time `json:"closed_at"`
	Bytes    int64      `json:"bytes" doc:"with indexes"`
}

// EventsReport is the state of the event log.
type EventsReport struct {
	Streams  []Stream       `json:"streams" doc:"by topic and scope"`
	Segments []EventSegment `json:"segments" doc:"by slot"`
}

// Events returns the state of the event log on one snapshot: the streams, or only that of the topic
// if topic is not empty, and the segments. It reads the rows of streams and segments and a few
// index entries for each partition; and onlyonce.parked by its unsettled rows.
func Events(ctx context.Context, db DB, topic string) (*EventsReport, error) {
	return Look(ctx, db, func(tx pgx.Tx) (r *EventsReport, err error) {
		r = &EventsReport{}
		if r.Streams, err = Collect[Stream](ctx, tx, StreamsSQL, OrNull(topic)); err == nil {
			r.Segments, err = Collect[EventSegment](ctx, tx, EventRingSQL)
		}
		return r, err
	})
}
