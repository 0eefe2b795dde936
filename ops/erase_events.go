package ops

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
)

// storedEventsSQL finds what is stored of events. In: topic; id, ordering key (each may be null:
// any). Out: a row for each place: the log (its state is handled, unread or the scope of a cursor
// that has not passed it), and parked, there also the same bodies under other ids, which a
// webhook's receiver sets aside. The log is read whole, but for partitions that an ordering key
// cannot be in: nothing but its offset finds an event by an index.
const storedEventsSQL = `
with logged as (
  select l."offset" as id,
         l.partition::bigint as partition,
         l.id as event,
         l.erased_at,
         l.body,
         ` + reports.EventState + `
    from onlyonce.streams s join onlyonce.event_log l on l.stream = s.id
   where s.topic = $1 and ($2::text is null or l.id = $2)
     and ($3::text is null
          or l.order_key = convert_to($3, 'UTF8')
          and l.partition = onlyonce.stream_partition(convert_to($3, 'UTF8'), s.partitions)))
select 'log' as "table",
       id,
       partition,
       event,
       erased_at,
       coalesce(octet_length(body), 0)::bigint as bytes,
       state,
       null::text as key,
       '' as sink
  from logged
union all
select 'parked',
       p.id,
       p.partition::bigint,
       p.event_id,
       p.erased_at,
       coalesce(octet_length(p.body), 0),
       p.state,
       null,
       ''
  from onlyonce.parked p
 where p.kind = 'event' and p.topic = $1
   and (($2::text is null or p.event_id = $2) and ($3::text is null or p.record_key = convert_to($3, 'UTF8'))
        or exists (select from logged l where l.body = p.body and p.reason = 'same-body'))
 order by 1, 3, 2`

// lockEventCursorsSQL locks the topic's cursors, which a replay would move back. In: topic.
// Consumers continue meanwhile, because their positions move by inserts.
const (
	lockEventCursorsSQL = `select id from onlyonce.cursors where topic = $1 order by id for share`
	lockParkedEventsSQL = `
select id from onlyonce.parked where kind = 'event' and topic = $1 and ($2::text is null or event_id = $2)
   and ($3::text is null or record_key = convert_to($3, 'UTF8')) order by id for update`
)

// eraseEventsSQL erases bodies and headers in the log. In: topic; offsets and partitions of one
// length. The rows stay: offsets stay dense, and ids say what was handled.
const eraseEventsSQL = `
update onlyonce.event_log l set body = null, header_names = '{}', header_values = '{}', erased_at = clock_timestamp()
  from onlyonce.streams s, unnest($2::bigint[], $3::bigint[]) as u(off, part)
 where s.topic = $1 and l.stream = s.id and l.partition = u.part and l."offset" = u.off and l.erased_at is null`

// EraseEventsInput is the input of [EraseEvents].
type EraseEventsInput struct {
	// Topic is the stream. Required.
	Topic string

	// ID is the id of one event, and Key an ordering key, for all its events. One of the two is
	// required.
	ID  string
	Key string

	// Shown is the result of a dry run with the same input that a person agreed to. If there are
	// more or fewer such events by now, the error is of kind ErrChanged.
	Shown *Erased
}

// Check returns an error of kind ErrInvalid unless the fields go together.
func (in *EraseEventsInput) Check() error {
	if err := checkText("`Topic`", in.Topic); err != nil {
		return err
	}
	switch {
	case in.ID != "" && in.Key != "":
		return failf(ErrInvalid, "`ID`: names one event, and goes with no `Key`")
	case in.ID != "":
		return checkText("`ID`", in.ID)
	}
	return checkText("`ID` or `Key`", in.Key)
}

// EraseEvents erases bodies and headers of handled events, in the log and in parked rows, including
// those that a webhook's receiver has set aside for the same body under another id, unless bodies
// are sealed. The rows stay until their segment of the log is emptied; a replay passes over them.
//
// Errors are of kind ErrNotFound if there is no such event, ErrRefused if a consumer of the stream
// has not handled one yet, ErrNothing if all are erased already, and ErrChanged. Consumers continue
// meanwhile.
func EraseEvents(ctx context.Context, db DB, by By, in EraseEventsInput) (*Erased, error) {
	k := kind{action: "events erase", subject: "one of the events", look: "onlyonce events erase"}
	return decide(ctx, db, k, by, &eventErasure{in, reports.OrNull(in.ID), reports.OrNull(in.Key)}, in.Shown)
}

type eventErasure struct {
	EraseEventsInput
	id, key *string
}

func (q *eventErasure) check() error { return q.Check() }

func (q *eventErasure) lock(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, lockEventCursorsSQL, q.Topic); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, lockParkedEventsSQL, q.Topic, q.id, q.key)
	return err
}

func (q *eventErasure) read(ctx context.Context, tx pgx.Tx) (*Erased, error) {
	rows, err := reports.Collect[Stored](ctx, tx, storedEventsSQL, q.Topic, q.id, q.key)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, failf(ErrNotFound, "`Topic`: stream %s has no such event: it was dropped with its "+
			"segment of the log, or never came", q.Topic)
	}
	done := true
	parkedBy := "" // whose row is among the rows, and says more, unless it has another key
	for i := range rows {
		r := &rows[i]
		done = done && r.ErasedAt != nil
		switch r.State {
		case "handled", "resolved", "discarded":
		case "unread":
			return nil, failf(ErrRefused, "no consumer has begun to read %s, and nothing was done: event %s "+
				"is still to be handled", q.Topic, show.OrDash(r.Event))
		case "waiting", "retrying", "blocked":
			return nil, failf(ErrRefused, "event %s is parked (%s) and may still be handled, and nothing "+
				"was done: give it up first with `onlyonce parked discard -id %d`", show.OrDash(r.Event), r.State, r.ID)
		default:
			scope, parked := strings.CutPrefix(r.State, "parked by ")
			if !parked {
				return nil, failf(ErrRefused, "event %s is still to be handled (%s), and nothing was done",
					show.OrDash(r.Event), r.State)
			}
			parkedBy = scope
		}
	}
	if parkedBy != "" {
		return nil, failf(ErrRefused, "an event is parked by the consumer of scope %s and may still be "+
			"handled, and nothing was done: give it up first with `onlyonce parked discard`", parkedBy)
	}
	if done {
		return nil, failf(ErrNothing, "All %d were erased already: nothing was changed.", len(rows))
	}
	return &Erased{Topic: q.Topic, Rows: rows}, nil
}

// differs reports whether there are more or fewer events than were shown.
func (q *eventErasure) differs(shown, now *Erased) bool {
	return len(shown.Rows) != len(now.Rows)
}

func (q *eventErasure) do(ctx context.Context, tx pgx.Tx, _ By, now *Erased) (*Erased, error) {
	var offsets, parked []int64
	var partitions []int64
	for _, r := range now.Rows {
		if r.ErasedAt != nil {
			continue
		}
		if r.Table == "log" {
			offsets = append(offsets, r.ID)
			partitions = append(partitions, *r.Partition)
		} else {
			parked = append(parked, r.ID)
		}
	}
	if _, err := tx.Exec(ctx, eraseEventsSQL, q.Topic, offsets, partitions); err != nil {
		return nil, err
	}
	erased, err := tx.Exec(ctx, eraseParkedSQL, parked)
	// one that lock did not find, because it has another id
	if err == nil && erased.RowsAffected() != int64(len(parked)) {
		return nil, failf(ErrChanged, "one of the events was parked again meanwhile, and nothing was done: try again")
	}
	return now, err
}
