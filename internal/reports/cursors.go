package reports

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// cursorsSQL reads cursors. In: scope, topic, partition (each may be null: any). By the unique
// index on (scope, topic, partition) as far as its columns are given; the latest row of progress of
// each by its primary key. Attempts are those at the first message that has some and is not
// below the position. Pauses, of which there are few, are read once; the pause of the whole scope
// comes before that of the partition.
const cursorsSQL = `
with paused as materialized (select * from onlyonce.pauses u where $1::text is null or u.scope = $1)
select id,
       scope,
       topic,
       partition,
       next_offset as position,
       run,
       start_offset,
       start_policy,
       group_id as "group",
       cluster_id,
       topic_id::text as topic_id,
       epoch,
       clean,
       coalesce(a.attempts, 0) as attempts,
       a."offset" as attempt_offset,
       anchor_offset,
       leader_epoch,
       retired_at,
       (select reason from paused u
         where u.scope = p.scope and u.topic in ('', p.topic) and u.partition in (-1, p.partition)
         order by u.topic, u.partition limit 1) as paused,
       replay_no as replay,
       replay_until,
       replay_resume,
       replay_resend,
       redo_until,
       redo_topic_id::text as redo_topic_id,
       done_until,
       extract(epoch from clock_timestamp() - released_at)::float8 as released_age
  from onlyonce.positions p
  left join lateral (select t."offset", t.attempts from onlyonce.attempts t
                      where t.cursor_id = p.id and t."offset" >= p.next_offset and t.attempts > 0
                      order by t."offset" limit 1) a on true
 where ($1::text is null or scope = $1) and ($2::text is null or topic = $2) and ($3::integer is null or partition = $3)
 order by scope, topic, partition`

// CursorFilter picks cursors. The zero value picks all.
type CursorFilter struct {
	Scope     string
	Topic     string
	Partition *int32
}

// Cursors returns the cursors that the filter picks, as rows of type T, by scope, topic and
// partition. It reads one row of onlyonce.cursors and one of onlyonce.progress for each: a database
// has as many as its consumers have partitions.
func Cursors[T any](ctx context.Context, tx pgx.Tx, f CursorFilter) ([]T, error) {
	return Collect[T](ctx, tx, cursorsSQL, OrNull(f.Scope), OrNull(f.Topic), f.Partition)
}
