package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// storedEventsSQL finds what is stored of events. In: topic; id, ordering key (each may be null: any). Out: a row for each place: the log (its state is
// handled, unread or the scope of a cursor that has not passed it), and parked. The log is read whole, but for partitions that an ordering key
// cannot be in: nothing but its offset finds an event by an index.
const storedEventsSQL = `
select 'log' as place, l."offset" as id, l.partition::bigint as partition, l.id as event, l.erased_at, coalesce(octet_length(l.body), 0)::bigint as bytes,
       case when not exists (select 1 from onlyonce.positions c where c.topic = s.topic and c.partition = l.partition
                              and (c.topic_id = s.incarnation or c.topic_id is null and coalesce(c.cluster_id, 'postgres') = 'postgres')) then 'unread'
            else coalesce((select 'before ' || c.scope from onlyonce.positions c where c.topic = s.topic and c.partition = l.partition
                              and (c.topic_id = s.incarnation or c.topic_id is null and coalesce(c.cluster_id, 'postgres') = 'postgres')
                              and c.retired_at is null and c.next_offset <= l."offset" order by c.scope limit 1), 'handled') end as state
  from onlyonce.streams s join onlyonce.event_log l on l.stream = s.id
 where s.topic = $1 and ($2::text is null or l.id = $2)
   and ($3::text is null or l.order_key = convert_to($3, 'UTF8') and l.partition = onlyonce.stream_partition(convert_to($3, 'UTF8'), s.partitions))
union all
select 'parked', p.id, p.partition::bigint, p.event_id, p.erased_at, coalesce(octet_length(p.body), 0), p.state
  from onlyonce.parked p
 where p.kind = 'event' and p.topic = $1 and ($2::text is null or p.event_id = $2) and ($3::text is null or p.record_key = convert_to($3, 'UTF8'))
 order by 1, 3, 2`

// lockEventsSQL locks what says that events were handled: cursors of the topic, which a replay would move back, and parked rows, which may be
// redriven. In: topic. Consumers go on meanwhile: their positions move by inserts.
const (
	lockEventCursorsSQL = `select id from onlyonce.cursors where topic = $1 order by id for share`
	lockParkedEventsSQL = `
select id from onlyonce.parked where kind = 'event' and topic = $1 and ($2::text is null or event_id = $2)
   and ($3::text is null or record_key = convert_to($3, 'UTF8')) order by id for update`
)

// eraseEventsSQL and eraseParkedEventsSQL erase bodies and headers. In: topic; offsets and partitions of one length, or ids of parked rows. The rows
// stay: offsets stay dense, and ids say what was handled.
const (
	eraseEventsSQL = `
update onlyonce.event_log l set body = null, header_names = '{}', header_values = '{}', erased_at = clock_timestamp()
  from onlyonce.streams s, unnest($2::bigint[], $3::bigint[]) as u(off, part)
 where s.topic = $1 and l.stream = s.id and l.partition = u.part and l."offset" = u.off and l.erased_at is null`
	eraseParkedEventsSQL = `
update onlyonce.parked set body = null, header_names = '{}', header_values = '{}', erased_at = clock_timestamp()
 where id = any ($1::bigint[]) and kind = 'event' and erased_at is null and state in ('resolved', 'discarded')`
)

// eventErasure is what the operator asks for.
type eventErasure struct {
	consent
	topic, id, key *string
}

type storedEvent struct {
	Place     string     `json:"place"` // log or parked
	ID        int64      `json:"id"`    // offset, or id of the parked row
	Partition *int64     `json:"partition"`
	Event     *string    `json:"event"`
	ErasedAt  *time.Time `json:"erased_at"` // before
	Bytes     int64      `json:"bytes"`
	State     string     `json:"state"`
}

// erasedEvents is what came of it, and the detail of its audit row.
type erasedEvents struct {
	Topic string        `json:"topic"`
	Rows  []storedEvent `json:"rows"`
}

func eventsEraseCommand() command {
	return command{
		name:    "events erase",
		args:    "[-postgres URL] -topic T (-id EVENT | -key KEY) -reason WHY [-yes]",
		summary: "erase events that were handled",
		help: `
Erases bodies and headers of events in the log, and where they were parked: for a person who asks to be forgotten. Every consumer that
reads the stream must have handled them ("onlyonce cursor retire" gives one up), and what is parked must be redriven or
discarded. The rows stay until their segment is emptied; a replay passes over them. Backups, and standbys that lag, hold the
bytes longer.

-id is the id of one event, as "onlyonce parked show" has it: for webhooks ENDPOINT/PROVIDER/ID. -key is an ordering key: all events
that are about one thing. The stream of a webhook endpoint is webhook.ENDPOINT. It asks first, unless -yes is given, and writes an
audit row. What is erased already stays so: status 0, nothing is written.

Examples:
  onlyonce events erase -topic webhook.stripe -key cus_42 -reason "GDPR request 118"
  onlyonce events erase -topic webhook.github -id github/github/72d3162e-cc78-11e3-81ab-4c9367dc0958 -reason "a token was pushed"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			ask := &eventErasure{}
			textVar(fs, &ask.topic, "topic", "the stream `T`")
			textVar(fs, &ask.id, "id", "the event with the id `EVENT`")
			textVar(fs, &ask.key, "key", "all events of the ordering key `KEY`")
			ask.consent.flags(fs)
			return func(ctx context.Context, a *app) error { return a.eraseEvents(ctx, *address, ask) }
		},
	}
}

func (a *app) eraseEvents(ctx context.Context, address string, ask *eventErasure) error {
	if err := missing(given{"-topic", ask.topic != nil}, given{"-id or -key", ask.id != nil || ask.key != nil}, given{"-reason", ask.reason != nil}); err != nil {
		return err
	}
	if ask.id != nil && ask.key != nil {
		return usagef("-id: names one event, and goes with no -key")
	}
	k := changeKind{action: "events erase", subject: "one of the events", waiting: "waiting for another transaction", look: "onlyonce events erase"}
	return change(ctx, a, address, k, ask.consent, ask, func(_ context.Context, _ *database, _ *erasedEvents, audit int64) error {
		_, _ = fmt.Fprintf(a.out, "Done: erased; audit row %d.\n", audit)
		return nil
	})
}

func (q *eventErasure) lock(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, lockEventCursorsSQL, q.topic); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, lockParkedEventsSQL, q.topic, q.id, q.key)
	return err
}

func (q *eventErasure) read(ctx context.Context, tx pgx.Tx) (*erasedEvents, error) {
	rows, err := collect[storedEvent](ctx, tx, storedEventsSQL, q.topic, q.id, q.key)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, usagef("-topic: stream %s has no such event: it was dropped with its segment of the log, or never came", oneLine(*q.topic))
	}
	done := true
	for i := range rows {
		r := &rows[i]
		utc(r.ErasedAt)
		done = done && r.ErasedAt != nil
		switch r.State {
		case "handled", "resolved", "discarded":
		case "unread":
			return nil, &refusal{fmt.Sprintf("no consumer has begun to read %s, and nothing was done: event %s is still to be handled", oneLine(*q.topic), oneLine(orDash(r.Event)))}
		case "waiting", "retrying", "blocked":
			return nil, &refusal{fmt.Sprintf("event %s is parked (%s) and may still be handled, and nothing was done: give it up first with `onlyonce parked discard -id %d`", oneLine(orDash(r.Event)), r.State, r.ID)}
		default:
			return nil, &refusal{fmt.Sprintf("event %s is still to be handled (%s), and nothing was done", oneLine(orDash(r.Event)), oneLine(r.State))}
		}
	}
	if done {
		return nil, &nothing{fmt.Sprintf("All %d were erased already: nothing was changed.", len(rows))}
	}
	return &erasedEvents{Topic: *q.topic, Rows: rows}, nil
}

// differs: more may have come meanwhile, which nobody was shown.
func (q *eventErasure) differs(shown, now *erasedEvents) bool {
	return len(shown.Rows) != len(now.Rows)
}

func (q *eventErasure) do(ctx context.Context, tx pgx.Tx, now *erasedEvents) (*erasedEvents, error) {
	var offsets, parked []int64
	var partitions []int64
	for _, r := range now.Rows {
		if r.Place == "log" {
			offsets, partitions = append(offsets, r.ID), append(partitions, *r.Partition)
		} else {
			parked = append(parked, r.ID)
		}
	}
	if _, err := tx.Exec(ctx, eraseEventsSQL, q.topic, offsets, partitions); err != nil {
		return nil, err
	}
	_, err := tx.Exec(ctx, eraseParkedEventsSQL, parked)
	return now, err
}

func (q *eventErasure) write(a *app, d *erasedEvents) {
	const most = 20
	var cells [][]string
	for i, r := range d.Rows {
		if i < most {
			cells = append(cells, []string{r.Place, numberOrDash(r.Partition), number(r.ID), orDash(r.Event), r.State, number(r.Bytes)})
		}
	}
	writeTable(a.out, []string{"STORED IN", "PARTITION", "OFFSET OR ID", "EVENT", "STATE", "BYTES"}, cells)
	if n := len(d.Rows) - most; n > 0 {
		_, _ = fmt.Fprintf(a.out, "and %d more\n", n)
	}
	_, _ = fmt.Fprintln(a.out, "Erase bodies and headers. They cannot be brought back, and the events cannot be replayed.")
}
