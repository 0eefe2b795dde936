package cursor

// PauseSQL pauses a partition or a whole scope. In: scope, topic (empty for the whole scope),
// partition (-1 for the whole scope), reason, actor (null: the role of the connection). A pause
// that exists already keeps its reason. One row: paused_at; none if it was paused already.
const PauseSQL = `
insert into onlyonce.pauses (
  scope,
  topic,
  partition,
  reason,
  actor
)
values (
  $1::text,
  $2::text,
  $3::integer,
  $4::text,
  coalesce($5::text, current_user)
)
on conflict do nothing returning paused_at`

// ResumeSQL removes a pause. In: scope, topic and partition as the pause has them. One row:
// paused_at; none if there was no such pause.
const ResumeSQL = `delete from onlyonce.pauses where scope = $1 and topic = $2 and partition = $3 returning paused_at`
