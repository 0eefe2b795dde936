package ops

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	origins "github.com/onlyonce/onlyonce/internal/origin"
	"github.com/onlyonce/onlyonce/internal/reports"
)

// movedSQL finds the batch that moved a cursor past an offset. In: cursor, run, offset. One row, or
// none if it was pruned. By the primary key.
var movedSQL = `
select p.from_offset, p.next_offset, ` + transactionOf("p.xmin", "n.xid") + `
  from (select q.xmin, q.from_offset, q.next_offset from onlyonce.progress q
         where q.cursor_id = $1 and q.run = $2 and q.from_offset <= $3 order by q.from_offset desc limit 1) p,
       (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as xid) n
 where p.next_offset > $3`

// doneSQL reports whether a message above the position is done. In: cursor, run, offset. By the
// primary key.
const doneSQL = `select exists (select from onlyonce.done where cursor_id = $1 and run = $2 and "offset" = $3)`

// runStartSQL reads where the present run of a cursor began. In: cursor. By the primary key.
const runStartSQL = `select run_start from onlyonce.cursors where id = $1`

// eventSQL finds an event of the event log. In: topic, partition, offset. By the unique index of
// each segment.
const eventSQL = `
select l.id, l.tenant, l.appended_at, l.erased_at
  from onlyonce.streams s
  join onlyonce.event_log l on l.stream = s.id and l.partition = $2 and l."offset" = $3 where s.topic = $1`

// PositionReport is the database's state of a position.
type PositionReport struct {
	Topic     string            `json:"topic"`
	Partition int32             `json:"partition"`
	Offset    int64             `json:"offset"`
	Cursors   []ExplainedCursor `json:"cursors"`
	Parked    []ParkedRow       `json:"parked" doc:"of that position, newest first, at most 100"`
	Event     *PositionEvent    `json:"event" doc:"if the topic is a stream of the event log"`
	NotKnown  []string          `json:"not_known" doc:"what the answer leaves open, a sentence each"`
}

// PositionEvent is the stored event at a position.
type PositionEvent struct {
	ID         string     `json:"id"`
	Tenant     string     `json:"tenant"`
	AppendedAt time.Time  `json:"appended_at"`
	ErasedAt   *time.Time `json:"erased_at" doc:"nil: its body was not erased"`
}

// Where an offset is, seen from a cursor.
const (
	offsetHandled     = "handled"      // applied, or a duplicate, or parked, or no message
	offsetReplaying   = "replaying"    // to be handled once more, in the replay that is under way
	offsetAhead       = "ahead"        // still to be handled
	offsetEarlierRun  = "earlier-run"  // below where the position was set: the cursor does not say
	offsetBeforeStart = "before-start" // below where the cursor began
)

// ExplainedCursor is an offset's state by one cursor.
type ExplainedCursor struct {
	Scope    string `json:"scope"`
	Position int64  `json:"position"`
	State    string `json:"state" doc:"see [Cursor.State]"`
	// handled, replaying (it is handled once more), ahead, earlier-run (the cursor does not say) or
	// before-start
	Offset string `json:"offset" doc:"above"`
	Means  string `json:"means" doc:"the same in a sentence"`
	// the batch that moved the position past the offset. It is nil if none has, or if it was pruned
	Moved *MovingBatch    `json:"moved" doc:"above"`
	Calls []ExplainedCall `json:"calls" doc:"calls of that transaction, at most 100"`
}

// MovingBatch is the batch that moved a cursor past an offset.
type MovingBatch struct {
	From        int64        `json:"from_offset" doc:"its first offset"`
	Next        int64        `json:"next_offset" doc:"the position after it"`
	Transaction *Transaction `json:"transaction" doc:"nil: no longer known"`
}

type movedRow struct {
	FromOffset, NextOffset int64
	Xid                    *int64
	XactStatus             *string
	CommittedAt            *time.Time
}

// ExplainPosition returns the database's state of a position, on one snapshot.
//
// It reads one cursor and one row of onlyonce.progress for each scope of the partition, at most
// 100 calls of each, the event by its index, and onlyonce.parked as a whole.
func ExplainPosition(ctx context.Context, db DB, q ExplainQuestion) (*PositionReport, error) {
	if err := q.checkPosition(); err != nil {
		return nil, err
	}
	r := &PositionReport{
		Topic:     q.Topic,
		Partition: *q.Partition,
		Offset:    *q.Offset,
		Cursors:   []ExplainedCursor{},
		NotKnown:  []string{},
	}
	if err := reports.Snapshot(ctx, db, func(tx pgx.Tx) error { return r.read(ctx, tx, q.Scope) }); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *PositionReport) read(ctx context.Context, tx pgx.Tx, scope string) error {
	cursors, err := reports.Cursors[Cursor](ctx, tx, reports.CursorFilter{
		Scope:     scope,
		Topic:     r.Topic,
		Partition: &r.Partition,
	})
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
	if r.Parked, _, err = reports.Parked[ParkedRow](ctx, tx, reports.ParkedFilter{
		Scope:     scope,
		Topic:     r.Topic,
		Partition: &r.Partition,
		Offset:    &r.Offset,
		Limit:     reports.ExplainLimit,
	}); err != nil {
		return err
	}
	if err := reports.First(ctx, tx, &r.Event, eventSQL, r.Topic, r.Partition, r.Offset); err != nil {
		return err
	}
	if r.Event == nil {
		r.NotKnown = append(r.NotKnown, "which key the message at this position has, and so whether it was "+
			"applied or was a duplicate: keys are not stored by position. Read its id in the topic, and run "+
			"onlyonce explain ID -scope SCOPE")
	}
	if len(r.Cursors) > 0 {
		r.NotKnown = append(r.NotKnown, "whether there is a message at this offset: control records, "+
			"aborted and compacted ones have offsets too")
	}
	return nil
}

// explainCursor says what a cursor means for an offset.
func explainCursor(ctx context.Context, tx pgx.Tx, c *Cursor, offset int64) (*ExplainedCursor, error) {
	e := &ExplainedCursor{Scope: c.Scope, Position: c.Position, State: c.State(), Calls: []ExplainedCall{}}
	var runStart int64
	if err := tx.QueryRow(ctx, runStartSQL, c.ID).Scan(&runStart); err != nil {
		return nil, err
	}
	var done bool
	if err := tx.QueryRow(ctx, doneSQL, c.ID, c.ownRun(), offset).Scan(&done); err != nil {
		return nil, err
	}
	if done && offset >= c.stood() {
		e.Offset = offsetHandled
		e.Means = "it was applied, or was a duplicate, or was parked, although an " +
			"earlier message is still to be handled"
		return e, nil
	}
	e.Offset, e.Means = judgeOffset(c, offset, runStart)
	rows, err := reports.Collect[movedRow](ctx, tx, movedSQL, c.ID, c.Run, offset)
	if err != nil || len(rows) == 0 {
		return e, err
	}
	m := rows[0]
	batch := fresh(&e.Moved)
	batch.From = m.FromOffset
	batch.Next = m.NextOffset
	batch.Transaction = transactionFrom(m.Xid, m.XactStatus, m.CommittedAt)
	if batch.Transaction == nil {
		return e, nil
	}
	calls, err := callsOf(ctx, tx, batch.Transaction)
	if err != nil {
		return nil, err
	}
	at := origins.Position{Topic: c.Topic, Partition: c.Partition, Offset: offset}
	if c.ClusterID != nil {
		at.ClusterID = *c.ClusterID
	}
	if c.TopicID != nil {
		if id, err := uuid.Parse(*c.TopicID); err == nil {
			at.TopicID = id
		}
	}
	for _, call := range calls {
		call.derived(origins.Origin{Tenant: call.Tenant, Scope: call.Scope, Position: at})
		e.Calls = append(e.Calls, call)
	}
	derivedFirst(e.Calls)
	return e, nil
}

// judgeOffset returns what a cursor's position means for an offset, as a word and as a sentence.
// The run began at runStart; a replay is a run of its own.
func judgeOffset(c *Cursor, offset, runStart int64) (word, means string) {
	replays := c.ReplayUntil != nil && c.ReplayResume != nil
	switch {
	case replays && offset >= c.Position && offset < *c.ReplayResume:
		if offset < *c.ReplayUntil {
			return offsetReplaying, fmt.Sprintf("it was below the position when replay %d began, and is to "+
				"be handled once more by that replay", c.Replay)
		}
		return offsetHandled, fmt.Sprintf("it was below the position when replay %d began, and is not part "+
			"of that replay",
			c.Replay)
	case offset >= c.Position && c.RetiredAt != nil:
		return offsetAhead, "the cursor was retired before it reached the message, and handles nothing any more"
	case offset >= c.Position && c.AttemptOffset != nil && *c.AttemptOffset == offset:
		return offsetAhead, fmt.Sprintf("it is tried alone, and was tried %d times", c.Attempts)
	case offset >= c.Position:
		return offsetAhead, "it is still to be handled"
	case offset >= runStart && c.Replay > 0 && c.ReplayUntil != nil:
		return offsetHandled, fmt.Sprintf("it was handled once more in replay %d", c.Replay)
	case offset >= runStart:
		return offsetHandled, "it was applied, or was a duplicate, or was parked, or there was nothing to hand over"
	case c.Run == 0:
		return offsetBeforeStart, meansBeforeStart(c)
	}
	return offsetEarlierRun, fmt.Sprintf(
		"the position was set to %d since, by an operator or with a new cursor: whether the message was "+
			"handled before that, or passed over, the cursor does not tell",
		runStart,
	)
}

// meansBeforeStart returns what is known of offsets below a cursor's first position: whether
// another program or database may have handled them.
func meansBeforeStart(c *Cursor) string {
	switch c.StartPolicy {
	case "adopted":
		return "an operator set the cursor's start above it, and it was not handled since: another database, " +
			"or an earlier cursor in this one, may have handled it before"
	case "committed":
		return "the cursor began above it, at the group's offset, and never handled it: the program that " +
			"committed that offset may have"
	}
	return "the cursor began above it, and never handled it"
}
