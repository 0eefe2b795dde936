package main

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/dedupe"
)

// movedSQL finds the batch that moved a cursor past an offset. In: cursor, run, offset. One row, or none where it was pruned. By the primary key.
var movedSQL = `
select p.from_offset, p.next_offset, ` + transactionOf("p.xmin", "n.xid") + `
  from (select q.xmin, q.from_offset, q.next_offset from onlyonce.progress q
         where q.cursor_id = $1 and q.run = $2 and q.from_offset <= $3 order by q.from_offset desc limit 1) p,
       (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as xid) n
 where p.next_offset > $3`

// runStartSQL reads where the present run of a cursor began. In: cursor. By the primary key.
const runStartSQL = `select run_start from onlyonce.cursors where id = $1`

// eventSQL finds an event of the event log. In: topic, partition, offset. By the unique index of each segment.
const eventSQL = `
select l.id, l.tenant, l.appended_at, l.erased_at
  from onlyonce.streams s join onlyonce.event_log l on l.stream = s.id and l.partition = $2 and l."offset" = $3 where s.topic = $1`

// explainedCursor is what `explain -topic` writes for each cursor.
type explainedCursor struct {
	Scope    string          `json:"scope"`
	Position int64           `json:"position"`
	State    string          `json:"state"`
	Offset   string          `json:"offset"` // what that means for the offset
	Means    string          `json:"means"`
	Moved    *moved          `json:"moved"`
	Calls    []explainedCall `json:"calls"`
}

type moved struct {
	From        int64        `json:"from_offset"`
	Next        int64        `json:"next_offset"`
	Transaction *transaction `json:"transaction"`
}

type movedRow struct {
	FromOffset, NextOffset int64
	Xid                    *int64
	XactStatus             *string
	CommittedAt            *time.Time
}

type explainedEvent struct {
	ID         string     `json:"id"`
	Tenant     string     `json:"tenant"`
	AppendedAt time.Time  `json:"appended_at"`
	ErasedAt   *time.Time `json:"erased_at"`
}

type positionReport struct {
	Topic     string            `json:"topic"`
	Partition int64             `json:"partition"`
	Offset    int64             `json:"offset"`
	Cursors   []explainedCursor `json:"cursors"`
	Parked    []parkedRow       `json:"parked"`
	Event     *explainedEvent   `json:"event"`
	NotKnown  []string          `json:"not_known"`
}

func (a *app) explainPosition(ctx context.Context, address string, ask *explaining, asJSON bool) error {
	switch {
	case a.operand != nil:
		return usagef("KEY %q and a position: ask for one of the two", *a.operand)
	case ask.tenant != nil || ask.replay != nil:
		return usagef("-tenant and -replay go with a KEY")
	}
	if err := missing(given{"-topic", ask.topic != nil}, given{"-partition", ask.partition != nil}, given{"-offset", ask.offset != nil}); err != nil {
		return err
	}
	r := &positionReport{Topic: *ask.topic, Partition: *ask.partition, Offset: *ask.offset, Cursors: []explainedCursor{}, NotKnown: []string{}}
	if err := a.readSnapshot(ctx, address, "looking at the position", func(ctx context.Context, tx pgx.Tx) error { return r.read(ctx, tx, ask) }); err != nil {
		return err
	}
	if asJSON {
		return writeJSON(a.out, r)
	}
	a.writePosition(r)
	return nil
}

func (r *positionReport) read(ctx context.Context, tx pgx.Tx, ask *explaining) error {
	cursors, err := readCursors(ctx, tx, ask.cursorFilter)
	if err != nil {
		return err
	}
	for i := range cursors {
		e, err := explainCursor(ctx, tx, &cursors[i], r.Offset)
		if err != nil {
			return err
		}
		r.Cursors = append(r.Cursors, *e)
	}
	if r.Parked, err = parkedOf(ctx, tx, ask.scope, nil, ask.topic, ask.partition, ask.offset); err != nil {
		return err
	}
	events, err := collect[explainedEvent](ctx, tx, eventSQL, r.Topic, r.Partition, r.Offset)
	if err != nil {
		return err
	}
	if len(events) > 0 {
		r.Event = &events[0]
		r.Event.AppendedAt = r.Event.AppendedAt.UTC()
		utc(r.Event.ErasedAt)
	}
	if r.Event == nil {
		r.NotKnown = append(r.NotKnown, "which key the message at this position has, and so whether it was applied or was a duplicate: keys are not stored by position. Read its id in the topic, and run onlyonce explain ID -scope SCOPE")
	}
	if len(r.Cursors) > 0 {
		r.NotKnown = append(r.NotKnown, "whether there is a message at this offset: control records, aborted and compacted ones have offsets too")
	}
	return nil
}

// explain says what a cursor tells of an offset.
func explainCursor(ctx context.Context, tx pgx.Tx, c *cursorRow, offset int64) (*explainedCursor, error) {
	e := &explainedCursor{Scope: c.Scope, Position: c.Position, State: state(c), Calls: []explainedCall{}}
	var runStart int64
	if err := tx.QueryRow(ctx, runStartSQL, c.ID).Scan(&runStart); err != nil {
		return nil, err
	}
	e.Offset, e.Means = judgeOffset(c, offset, runStart)
	rows, err := collect[movedRow](ctx, tx, movedSQL, c.ID, c.Run, offset)
	if err != nil || len(rows) == 0 {
		return e, err
	}
	m := rows[0]
	e.Moved = &moved{From: m.FromOffset, Next: m.NextOffset, Transaction: transactionFrom(m.Xid, m.XactStatus, m.CommittedAt)}
	if e.Moved.Transaction == nil {
		return e, nil
	}
	calls, err := callsOf(ctx, tx, e.Moved.Transaction)
	if err != nil {
		return nil, err
	}
	at := dedupe.Position{Topic: c.Topic, Partition: c.Partition, Offset: offset}
	if c.ClusterID != nil {
		at.ClusterID = *c.ClusterID
	}
	if c.TopicID != nil {
		if id, err := uuid.Parse(*c.TopicID); err == nil {
			at.TopicID = id
		}
	}
	for _, call := range calls {
		call.derived(dedupe.Origin{Tenant: call.Tenant, Scope: call.Scope, Position: at})
		e.Calls = append(e.Calls, call)
	}
	return e, nil
}

// judge says what a cursor's position means for an offset, in a word and in a sentence. The run began at runStart; a replay is a run of its own.
func judgeOffset(c *cursorRow, offset, runStart int64) (word, means string) {
	switch {
	case c.ReplayUntil != nil && c.ReplayResume != nil && offset >= c.Position && offset < *c.ReplayResume:
		if offset < *c.ReplayUntil {
			return "replaying", fmt.Sprintf("it was behind the cursor when replay %d began, and is to be handled once more in it", c.Replay)
		}
		return "handled", fmt.Sprintf("it was behind the cursor when replay %d began, and is not part of that", c.Replay)
	case offset >= c.Position && c.RetiredAt != nil:
		return "ahead", "the cursor was retired before it came to it, and handles nothing any more"
	case offset >= c.Position && c.AttemptOffset != nil && *c.AttemptOffset == offset:
		return "ahead", fmt.Sprintf("it is tried alone, and was tried %d times", c.Attempts)
	case offset >= c.Position:
		return "ahead", "it is still to be handled"
	case offset >= runStart && c.Replay > 0 && c.ReplayUntil != nil:
		return "handled", fmt.Sprintf("it was handled once more in replay %d", c.Replay)
	case offset >= runStart:
		return "handled", "it was applied, or was a duplicate, or was parked, or there was nothing to hand over"
	case c.Run == 0:
		return "before-start", meansBeforeStart(c)
	}
	return "earlier-run", fmt.Sprintf("the position was set since, to %d, by an operator or with a cursor that was made anew: whether it was handled before that, or passed over, the cursor does not tell", runStart)
}

// meansBeforeStart says what is known of what lies below a cursor's first position: what nobody else can have handled, and what somebody may have.
func meansBeforeStart(c *cursorRow) string {
	switch c.StartPolicy {
	case "adopted":
		return "an operator had the cursor begin behind it, and it was not handled since: whether another database handled it before, or an earlier cursor in this one, the cursor does not tell"
	case "committed":
		return "the cursor began behind it, where the group's offset stood, and never handled it: whether the program that committed that offset did, the cursor does not tell"
	}
	return "the cursor began behind it, and never handled it"
}
