package ops

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// cursorsSQL reads cursors as they stand. In: scope, topic, partition (each may be null: any). By the unique index on
// (scope, topic, partition) as far as its columns are given; the latest row of progress of each by its primary key.
// Attempts count while their message is still ahead: nobody clears them once it is done. A pause is found by the primary key
// of onlyonce.pauses; that of the whole scope stands before that of the partition.
const cursorsSQL = `
select id, scope, topic, partition, next_offset as position, run, start_offset, start_policy,
       group_id as "group", cluster_id, topic_id::text as topic_id, epoch, clean,
       case when attempt_offset >= next_offset then attempts else 0 end as attempts,
       case when attempt_offset >= next_offset then attempt_offset end as attempt_offset, anchor_offset, leader_epoch,
       retired_at, (select reason from onlyonce.pauses u
                     where u.scope = p.scope and (u.topic = '' or u.topic = p.topic and u.partition = p.partition)
                     order by u.topic limit 1) as paused,
       replay_no as replay, replay_until, replay_resume, replay_resend, redo_until, redo_topic_id::text as redo_topic_id
  from onlyonce.positions p
 where ($1::text is null or scope = $1) and ($2::text is null or topic = $2) and ($3::integer is null or partition = $3)
 order by scope, topic, partition`

// Cursor is the row that keeps a consumer's position in one partition.
type Cursor struct {
	ID            int64   `json:"-"`
	Scope         string  `json:"scope"`
	Topic         string  `json:"topic"`
	Partition     int32   `json:"partition"`
	Position      int64   `json:"position"`
	Run           int32   `json:"run"`
	StartOffset   int64   `json:"start_offset"`
	StartPolicy   string  `json:"start_policy"`
	Group         *string `json:"group"`
	ClusterID     *string `json:"cluster_id"`
	TopicID       *string `json:"topic_id"`
	Epoch         int64   `json:"epoch"`
	Clean         bool    `json:"clean"`
	Attempts      int32   `json:"attempts"`
	AttemptOffset *int64  `json:"attempt_offset"`
	AnchorOffset  *int64  `json:"anchor_offset"`
	LeaderEpoch   *int32  `json:"leader_epoch"` // Kafka's, up to which the log was read below the position

	RetiredAt    *time.Time `json:"retired_at"`
	Paused       *string    `json:"paused"` // why
	Replay       int32      `json:"replay"` // number of the last one
	ReplayUntil  *int64     `json:"replay_until"`
	ReplayResume *int64     `json:"replay_resume"`
	ReplayResend bool       `json:"replay_resend"`
	RedoUntil    *int64     `json:"redo_until"` // messages below it may have been handled before
	RedoTopicID  *string    `json:"redo_topic_id"`
}

// CursorFilter picks cursors. Nil: any.
type CursorFilter struct {
	Scope, Topic *string
	Partition    *int64
}

// Cursors returns the cursors that a filter picks, by scope, topic and partition. An empty slice, not
// an error, if there are none.
func Cursors(ctx context.Context, db DB, f CursorFilter) (found []Cursor, err error) {
	err = snapshot(ctx, db, func(tx pgx.Tx) error {
		found, err = readCursors(ctx, tx, f)
		return err
	})
	return found, err
}

func readCursors(ctx context.Context, tx pgx.Tx, f CursorFilter) ([]Cursor, error) {
	cursors, err := collect[Cursor](ctx, tx, cursorsSQL, f.Scope, f.Topic, f.Partition)
	for i := range cursors {
		utc(cursors[i].RetiredAt)
	}
	return cursors, err
}
