package reports

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/seal"
)

// EventState says what became of an event of the log l of the stream s: unread, before SCOPE (the
// first consumer that has not handled it), parked by SCOPE (the first one that has it parked, by
// the index parked_position), or handled.
const EventState = `
       coalesce((select case
                          when count(*) = 0 then 'unread'
                          else 'before ' || min(c.scope) filter (
                            where c.retired_at is null and coalesce(q.next_offset, c.run_start) <= l."offset")
                        end
                   from onlyonce.cursors c
                   left join lateral (
                     select q.next_offset
                       from onlyonce.progress q
                      where q.cursor_id = c.id and q.run = c.run
                      order by q.from_offset desc limit 1) q on true
                  where c.topic = s.topic
                    and c.partition = l.partition
                    and (c.topic_id = s.incarnation
                         or c.topic_id is null and coalesce(c.cluster_id, 'postgres') = 'postgres')),
                (select 'parked by ' || c.scope
                   from onlyonce.cursors c
                   join onlyonce.parked k on k.scope = c.scope and k.topic = c.topic and k.partition = c.partition
                  where c.topic = s.topic
                    and c.partition = l.partition
                    and c.retired_at is null
                    and k."offset" = l."offset"
                    and k.settled_at is null
                    and k.scope is not null
                  order by c.scope limit 1),
                'handled') as state`

// eventColumns are what a list of events reads. No bodies.
const eventColumns = `
select s.topic,
       l.partition::integer as partition,
       l."offset",
       l.id,
       l.tenant,
       l.appended_at,
       l.erased_at,
       coalesce(octet_length(l.body), 0)::bigint as bytes,` + EventState

// eventsSQL lists events, newest first. In: topic, partition, id as stored or its last part (each
// may be null: any), how many. By the unique indexes of the segments, that many of each partition;
// with an id, all events.
const eventsSQL = eventColumns + `
  from onlyonce.streams s cross join lateral generate_series(0, s.partitions - 1) n
 cross join lateral (
   select l.* from onlyonce.event_log l
    where l.stream = s.id
      and l.partition = n::smallint
      and ($3::text is null or l.id = $3 or right(l.id, length($3) + 1) = '/' || $3)
    order by l."offset" desc limit $4) l
 where ($1::text is null or s.topic = $1) and ($2::integer is null or n = $2)
 order by l.appended_at desc, l."offset" desc limit $4`

// unhandledEventsSQL lists the events that a consumer has not handled, oldest first. In: topic,
// partition (null: any), scope, how many. By the unique indexes of the segments, that many of each
// partition.
const unhandledEventsSQL = eventColumns + `
  from onlyonce.streams s join onlyonce.positions p on p.scope = $3 and p.topic = s.topic and p.retired_at is null
 cross join lateral (
   select l.* from onlyonce.event_log l
    where l.stream = s.id and l.partition = p.partition and l."offset" >= p.next_offset
    order by l."offset" limit $4) l
 where ($1::text is null or s.topic = $1) and ($2::integer is null or p.partition = $2)
 order by l.appended_at, l."offset" limit $4`

// oneEventSQL reads one event. In: topic, partition, offset, whether with its body. One row, or
// none. By the unique index of each segment.
const oneEventSQL = eventColumns +
	`, l.order_key, l.header_names, l.header_values, case when $4::boolean then l.body end as body
  from onlyonce.streams s join onlyonce.event_log l on l.stream = s.id and l.partition = $2 and l."offset" = $3
 where s.topic = $1`

// Event is an event of the event log, without its body.
type Event struct {
	// "webhook." and the endpoint for webhooks, "queue." and its name for queues
	Topic     string `json:"topic" doc:"above"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	ID        string `json:"id" doc:"ENDPOINT/PROVIDER/ID for webhooks"`
	Tenant    string `json:"tenant"`
	// unread if no consumer has begun to read it; "before SCOPE" if the consumer of that scope has
	// not handled it; "parked by SCOPE" if it is parked there and not settled; or handled, by all
	State      string     `json:"state" doc:"above"`
	AppendedAt time.Time  `json:"appended_at"`
	ErasedAt   *time.Time `json:"erased_at" doc:"when its body was erased"`
	Bytes      int64      `json:"bytes" doc:"size of its body"`
}

// EventFilter picks events. The zero value picks the newest DefaultLimit.
type EventFilter struct {
	Topic     string
	Partition *int32

	// ID is an event's id as stored, or the last part of it: of a webhook, its sender's id. It must
	// be empty if Behind is set.
	ID string

	Behind string
	Limit  int

	// CountLimit bounds a search by ID. Defaults to CountLimit of this package.
	CountLimit time.Duration
}

// EventList returns the events that the filter picks, without bodies, and whether there are more:
// newest first, or with Behind oldest first. It reads at most Limit+1 events of each partition.
// With an ID it reads the log, which has no index of ids, for at most CountLimit: if that is too
// short the error is of kind ErrRefused.
func EventList(ctx context.Context, db DB, f EventFilter) (events []Event, more bool, err error) {
	switch {
	case f.Partition != nil && f.Topic == "":
		return nil, false, &Refusal{Kind: Invalid, Reason: "`Partition` needs `Topic`"}
	case f.ID != "" && f.Behind != "":
		return nil, false, &Refusal{Kind: Invalid, Reason: "`ID` and `Behind`: give one of the two"}
	}
	sql := eventsSQL
	third := OrNull(f.ID)
	if f.Behind != "" {
		sql = unhandledEventsSQL
		third = &f.Behind
	}
	events, err = Look(ctx, db, func(tx pgx.Tx) ([]Event, error) {
		return CollectWithin[Event](ctx, tx, f.CountLimit, sql, OrNull(f.Topic), f.Partition, third, LimitOf(f.Limit))
	})
	switch {
	case err != nil:
		return nil, false, err
	case events == nil:
		return nil, false, &Refusal{
			Kind:   Refused,
			Reason: "the events were not found in time",
			Remedy: "name the topic and the partition; or, for a webhook, `onlyonce explain ID -scope " +
				"webhook/ENDPOINT`",
		}
	}
	events, more = Cut(events, f.Limit)
	return events, more, nil
}

// EventsOfID finds the events of a stream with an id, as stored or its last part; nil: that took
// longer than limit.
func EventsOfID(ctx context.Context, tx pgx.Tx, limit time.Duration, topic, id string) ([]Event, error) {
	var anyPartition *int32
	return CollectWithin[Event](ctx, tx, limit, eventsSQL, topic, anyPartition, id, DefaultLimit)
}

// EventName is an event's id. A webhook's is shown as its sender knows it, with the provider.
func EventName(topic, id string) string {
	// endpoint, provider, id
	if part := strings.SplitN(id, "/", 3); len(part) == 3 && strings.HasPrefix(topic, names.WebhookStreams) {
		return part[2] + " (of " + part[1] + ")"
	}
	return id
}

// EventDetail is everything that the log has of one event.
type EventDetail struct {
	Event
	OrderKey Octets   `json:"order_key" doc:"nil: it has none"`
	Headers  []Header `json:"headers" db:"-"`
	Body     Octets   `json:"body,omitzero" doc:"nil unless it was asked for"`

	HeaderNames, HeaderValues [][]byte `json:"-"` // become Headers

	opened bool // Body is as it was before it was sealed
}

// Sealed reports whether the body is sealed.
func (e *EventDetail) Sealed() bool { return !e.opened && e.ErasedAt == nil && SealedEvent(e.Headers) }

// SealedEvent reports whether an event with these headers was sealed when it was received.
func SealedEvent(all []Header) bool {
	return slices.ContainsFunc(all, func(h Header) bool { return h.Name == parked.HeaderSealed })
}

// Open opens a sealed body with the keys of the program that sealed it.
func (e *EventDetail) Open(sealer *seal.Sealer) error {
	if !e.Sealed() || e.Body == nil {
		return nil
	}
	body, err := sealer.Open(parked.EventPlace(e.Tenant, e.Topic, e.ID), e.Body)
	if err == nil {
		e.Body = body
		e.opened = true
	}
	return err
}

// EventAt returns one event, with its body if body is set: bodies may be private. It returns nil if
// the log has none at that position.
func EventAt(
	ctx context.Context,
	db DB,
	topic string,
	partition int32,
	offset int64,
	body bool,
) (d *EventDetail, err error) {
	err = Snapshot(ctx, db, func(tx pgx.Tx) error {
		return First(ctx, tx, &d, oneEventSQL, topic, partition, offset, body)
	})
	if err == nil && d != nil {
		d.Headers = Headers(d.HeaderNames, d.HeaderValues)
	}
	return d, err
}
