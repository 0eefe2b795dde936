package ops

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
)

// cursorsSQL reads cursors. In: scope, topic, partition (each may be null: any). By the unique
// index on (scope, topic, partition) as far as its columns are given; the latest row of progress of
// each by its primary key. Attempts are those at the first message that has some and is not
// below the position. A pause is found by the primary key of onlyonce.pauses; the pause
// of the whole scope comes before that of the partition.
const cursorsSQL = `
select id, scope, topic, partition, next_offset as position, run, start_offset, start_policy,
       group_id as "group", cluster_id, topic_id::text as topic_id, epoch, clean,
       coalesce(a.attempts, 0) as attempts, a."offset" as attempt_offset, anchor_offset, leader_epoch,
       retired_at, (select reason from onlyonce.pauses u
                     where u.scope = p.scope and (u.topic = '' or u.topic = p.topic and u.partition = p.partition)
                     order by u.topic limit 1) as paused,
       replay_no as replay, replay_until, replay_resume, replay_resend, redo_until, redo_topic_id::text as redo_topic_id,
       done_until, extract(epoch from clock_timestamp() - released_at)::float8 as released_age
  from onlyonce.positions p
  left join lateral (select t."offset", t.attempts from onlyonce.attempts t
                      where t.cursor_id = p.id and t."offset" >= p.next_offset and t.attempts > 0 order by t."offset" limit 1) a on true
 where ($1::text is null or scope = $1) and ($2::text is null or topic = $2) and ($3::integer is null or partition = $3)
 order by scope, topic, partition`

// Cursor is a consumer's position in one partition. A nil pointer means: not known, or none.
type Cursor struct {
	ID          int64  `json:"id"`
	Scope       string `json:"scope" col:"SCOPE"`
	Topic       string `json:"topic" col:"TOPIC"`
	Partition   int32  `json:"partition" col:"PARTITION"`
	Position    int64  `json:"position" col:"POSITION" doc:"the next offset that will be handled"`
	Run         int32  `json:"run" col:"RUN" doc:"rises each time an operator sets the position"`
	StartOffset int64  `json:"start_offset" col:"START" by:"Start" doc:"where the cursor began"`
	StartPolicy string `json:"start_policy" doc:"why there: committed, earliest, latest or adopted"`

	// Group, ClusterID and TopicID identify the owner and the log of the cursor. Nil: the next
	// owner sets its own.
	Group     *string `json:"group" col:"GROUP"`
	ClusterID *string `json:"cluster_id" col:"CLUSTER"`
	TopicID   *string `json:"topic_id" col:"TOPIC ID"`

	Epoch         int64  `json:"epoch" col:"EPOCH" doc:"rises with each owner"`
	Clean         bool   `json:"clean" col:"CLEAN" doc:"the last owner released it in order"`
	Attempts      int32  `json:"attempts" col:"ATTEMPTS" by:"Tried" doc:"at the message at AttemptOffset, which is tried alone"`
	AttemptOffset *int64 `json:"attempt_offset"`
	AnchorOffset  *int64 `json:"anchor_offset" col:"ANCHOR" doc:"of the last record seen below the position"`
	LeaderEpoch   *int32 `json:"leader_epoch" doc:"Kafka's, up to which the log was read below the position"`

	RetiredAt    *time.Time `json:"retired_at" col:"STATE" by:"State"`
	Paused       *string    `json:"paused" doc:"why it is paused"`
	Replay       int32      `json:"replay" doc:"number of the last one; 0: there was none"`
	ReplayUntil  *int64     `json:"replay_until" doc:"nil: no replay is under way"`
	ReplayResume *int64     `json:"replay_resume"`
	ReplayResend bool       `json:"replay_resend"`
	RedoUntil    *int64     `json:"redo_until" doc:"messages below this offset may have been handled before"`
	RedoTopicID  *string    `json:"redo_topic_id"`

	DoneUntil *int64 `json:"done_until" doc:"the end of what is done above the position, where several transactions run at once. Nil: nothing is"`

	ReleasedAge *float64 `json:"-"` // seconds since the last owner released it; nil: it has not
}

// State names the cursor's unusual states: one or more of "retired", "paused" and "replay N to
// OFFSET", separated by ", ", or empty.
func (c *Cursor) State() string {
	var s []string
	if c.RetiredAt != nil {
		s = append(s, "retired")
	}
	if c.Paused != nil {
		s = append(s, "paused")
	}
	if c.ReplayUntil != nil {
		s = append(s, fmt.Sprintf("replay %d to %d", c.Replay, *c.ReplayUntil))
	}
	return strings.Join(s, ", ")
}

// Start describes the offset at which the cursor began, and the reason.
func (c *Cursor) Start() string { return fmt.Sprintf("%d %s", c.StartOffset, c.StartPolicy) }

// Tried describes the attempts at a message that is handled alone, empty if there are none.
func (c *Cursor) Tried() string {
	if c.Attempts == 0 || c.AttemptOffset == nil {
		return ""
	}
	return fmt.Sprintf("%d at %d", c.Attempts, *c.AttemptOffset)
}

// CursorFilter picks cursors. The zero value picks all.
type CursorFilter struct {
	Scope     string `flag:"scope" arg:"S" doc:"the scope S of the consumer"`
	Topic     string `flag:"topic" arg:"T" doc:"the topic T"`
	Partition *int32 `flag:"partition" arg:"N" doc:"the partition N"`
}

// Cursors returns the cursors that the filter picks, by scope, topic and partition. If there are
// none, the slice is empty, without an error. It reads one row of onlyonce.cursors and one of
// onlyonce.progress for each: a database has as many as its consumers have partitions.
func Cursors(ctx context.Context, db DB, f CursorFilter) (found []Cursor, err error) {
	return reports.Look(ctx, db, func(tx pgx.Tx) ([]Cursor, error) { return readCursors(ctx, tx, f) })
}

func readCursors(ctx context.Context, tx pgx.Tx, f CursorFilter) ([]Cursor, error) {
	return reports.Collect[Cursor](ctx, tx, cursorsSQL, reports.OrNull(f.Scope), reports.OrNull(f.Topic), f.Partition)
}
