package cursor

// CreateSQL makes a lease and a cursor, once: a row that exists already stays as it is. In: scope,
// topic, partition, group, cluster and topic id (each null: the next owner sets it), offset,
// policy, leader epoch below the offset (null: not known), name of the lease (names.Cursor). One
// row: the id; none if the cursor exists.
//
// If a lease exists without its cursor, it is used, in a run above all rows that are left of it.
//
// It waits for a change of the scope's class of horizon, which fences out the owners of the cursors
// that there are: the owner of this one reads the class later (K10).
const CreateSQL = `
with scope as materialized (select scope from onlyonce.scopes where scope = $1 for key share),
lease as (
  insert into onlyonce.leases (name) values ($10)
  on conflict (name) do update set name = excluded.name returning id)
insert into onlyonce.cursors (
  id,
  scope,
  topic,
  partition,
  group_id,
  cluster_id,
  topic_id,
  start_offset,
  run_start,
  start_policy,
  run_epoch,
  run
)
select id,
       $1::text,
       $2::text,
       $3::integer,
       $4::text,
       $5::text,
       $6::uuid,
       $7::bigint,
       $7::bigint,
       $8::text,
       $9::integer,
       coalesce(greatest((select max(p.run) from onlyonce.progress p where p.cursor_id = lease.id),
                         (select max(d.run) from onlyonce.done d where d.cursor_id = lease.id)) + 1, 0)
  from lease cross join (select count(*) from scope) held
on conflict do nothing
returning id`

// LockOwnerSQL has a cursor to itself, by onlyonce.lock_owner. In: scope, topic, partition. One
// row, or none if there is no cursor. It waits for the owner's transactions, and keeps out later
// ones and every process that would take over. Only a later statement sees what they did (C3, T14).
const LockOwnerSQL = `
select onlyonce.lock_owner(c.id) from onlyonce.cursors c where c.scope = $1 and c.topic = $2 and c.partition = $3`

// FenceOwnerSQL raises the epoch and sets a new nonce, so that any later write of the present owner
// fails on its fence. In: lease, the epoch that was read under the lock. Out: the new epoch. It is
// never null under that lock, because the lease of a cursor has no time.
const FenceOwnerSQL = `select onlyonce.raise_epoch($1, $2, gen_random_uuid())`

// AdoptSQL changes the cursor. In: id, group or null, offset or null; with an offset also below
// which offset of which topic messages may have been handled before (each null: not known), and the
// run whose rows are done above the position, which may be set back over them. By the primary key,
// under the lock on its lease.
//
// A position is valid in one incarnation of the topic only. So with an offset, the next owner sets
// cluster and topic, and a new run begins. That run has no anchor and no leader epoch to compare
// the log with. An offset also brings a retired cursor back, and ends a replay.
//
// Without an offset, everything that proves the log to be the same stays. That matters most for the
// ids: once retention has removed the anchor's record they are the only proof. Without them, a
// topic that was made anew would be read from the old one's position (F5).
const AdoptSQL = `
update onlyonce.cursors
   set group_id       = $2::text,
       cluster_id     = case when $3::bigint is null then cluster_id end,
       topic_id       = case when $3::bigint is null then topic_id end,
       run            = case when $3::bigint is null then run else run + 1 end,
       run_start      = coalesce($3::bigint, run_start),
       run_epoch      = case when $3::bigint is null then run_epoch end,
       retired_at     = case when $3::bigint is null then retired_at end,
       replay_until   = case when $3::bigint is null then replay_until end,
       replay_resume  = case when $3::bigint is null then replay_resume end,
       replay_resend  = case when $3::bigint is null then replay_resend else false end,
       redo_until     = case when $3::bigint is null then redo_until
                        else greatest(
                          $4::bigint,
                          (select max(d."offset") + 1 from onlyonce.done d where d.cursor_id = $1 and d.run = $6)
                        ) end,
       redo_topic_id  = case when $3::bigint is null then redo_topic_id else $5::uuid end
 where id = $1`

// KeepDoneSQL carries what is done above the position over to another run, and marks it: the log is
// not proven to be the same, so each row holds only if the log has its record (C7). In: id, the run
// that it belongs to, the new run, the offset from which on it is kept (null: nothing is). The
// others keep their run, in which they mean nothing any more, and are pruned. By the primary key,
// in the transaction that fences the owner out: otherwise a late transaction of that owner might
// need the rows (C5, C7).
const KeepDoneSQL = `
update onlyonce.done set run = $3, unproven = true where cursor_id = $1 and run = $2 and "offset" >= $4::bigint`

// ForgetAttemptsSQL deletes the counts of attempts of a cursor whose position is set. In: id.
const ForgetAttemptsSQL = `delete from onlyonce.attempts where cursor_id = $1`

// BringDoneSQL brings what is done above the position of another database. In: id, run, offsets,
// hashes. ReadDoneSQL reads it there. In: id, run, position (C7).
const (
	BringDoneSQL = `
insert into onlyonce.done (
  cursor_id,
  "offset",
  hash,
  run,
  last
)
select $1,
       u.o,
       u.h,
       $2,
       false
  from unnest($3::bigint[], $4::bigint[]) u (o, h)`
	ReadDoneSQL = `select "offset", hash from onlyonce.done where cursor_id = $1 and run = $2 and "offset" >= $3`
)

// StampSQL sets what a position that came from another database means: its group, its topic and
// cluster, and the number of replays that is part of the keys which come with it. In: id, group,
// cluster, topic id, leader epoch below it (each null: not known), replay number. By the primary
// key, under the lock on the lease.
const StampSQL = `
update onlyonce.cursors
   set group_id = $2,
       cluster_id = $3,
       topic_id = $4,
       run_epoch = $5,
       replay_no = greatest(replay_no, $6)
 where id = $1`

// RedoSQL records that messages below an offset of a topic (null: not known) may have been handled
// before (O6). It compares no owner: the highest offset that any process knows of counts.
const RedoSQL = `
update onlyonce.cursors
   set redo_until = case when redo_topic_id <> $3::uuid then $2
                         else greatest(redo_until, $2) end, redo_topic_id = coalesce($3::uuid, redo_topic_id)
 where id = $1`

// LockReplaysSQL lets one replay of a scope be made at a time: two at once would get the same
// number. In: scope. It holds until the transaction ends, and lock_timeout bounds the wait.
const LockReplaysSQL = `select pg_advisory_xact_lock(hashtextextended('onlyonce/replay/' || $1::text, 0))`

// ReplayNoSQL reads the number of the next replay. In: scope. Numbers count per scope and not per
// cursor: the number is part of the keys that messages claim during the replay, and copies of one
// message may be in several partitions. By the unique index on (scope, topic, partition).
const ReplayNoSQL = `select coalesce(max(replay_no), 0) + 1 from onlyonce.cursors where scope = $1`

// ReplaySQL begins a replay. In: id, from, to, position that it interrupts, number, whether calls
// get new keys, leader epoch below the position (null: not known). By the primary key, under the
// lock on the lease. A replay is a run of its own without an anchor, because what was before its
// first offset is unknown. What is done above the interrupted position keeps the run before: the
// end of the replay takes it over. The epoch bounds what is below every offset up to the
// interrupted position, and counts there again when the work goes on (F5, F10).
const ReplaySQL = `
update onlyonce.cursors
   set run = run + 1,
       run_start = $2,
       run_epoch = $7,
       replay_no = $5,
       replay_until = $3,
       replay_resume = $4,
       replay_resend = $6
 where id = $1`

// RetireSQL retires a cursor. In: id. By the primary key, under the lock on its lease.
const RetireSQL = `update onlyonce.cursors set retired_at = clock_timestamp() where id = $1`

// BringScopeSQL brings the scope of another database. In: scope, topics, choice (null: none), first
// topic, until when its keys were forgotten there (null: none were), class of horizon, the class
// before if its ring has to be asked too (null: it has not), until when ids are too old there
// (null: none are). By the primary key. The keys that came along from the ring of the class before
// are in its current segment here, so the change counts from now on, or from when that segment was
// opened by a clock that has gone back since (see ClassSQL, K9).
const BringScopeSQL = `
insert into onlyonce.scopes as s (
  scope,
  topics,
  copies,
  first_topic,
  forgotten,
  class,
  class_before,
  too_old,
  class_changed_at
)
values (
  $1,
  $2::text[],
  $3,
  $4,
  $5,
  $6,
  $7::text,
  $8,
  case when $7::text is not null
         then greatest(
           clock_timestamp(),
           (select max(g.opened_at) from onlyonce.segments g where g.ring = onlyonce.class_ring($7::text))
         ) end
)
on conflict (scope) do update
    set copies = coalesce(s.copies, excluded.copies),
        forgotten = greatest(s.forgotten, excluded.forgotten),
        too_old = greatest(s.too_old, excluded.too_old),
        class_changed_at = coalesce(excluded.class_changed_at, s.class_changed_at),
        topics = (select array_agg(distinct t) from unnest(s.topics || excluded.topics) t)`

// LockScopeOwnersSQL has all cursors of a scope to itself, one after another; see LockOwnerSQL.
// Out: a row for each. LockScopeRowSQL locks the scope's row after that: it waits for transactions
// that make a cursor (CreateSQL) or claim by the row (onlyonce.claim_scope), and keeps out later
// ones. In: scope.
const (
	LockScopeOwnersSQL = `
select onlyonce.lock_owner(o.id) from (select c.id from onlyonce.cursors c where c.scope = $1 order by c.id) o`

	LockScopeRowSQL = `select scope from onlyonce.scopes where scope = $1 for update`
)

// ClassSQL changes the class of horizon of a scope. In: scope, class. By the primary key, under the
// locks above, when the epochs of all cursors are raised: every claim in the earlier ring alone has
// ended. What the rings of the last two classes have forgotten is kept, because the functions
// forgotten and too_old look at the present class and the one before. The time of the change is
// never before that of a segment of the earlier ring, also if the clock has gone back since the
// segment was opened: otherwise the change would be over at once, and the keys in it would not be
// found (K9, K10).
const ClassSQL = `
update onlyonce.scopes s
   set forgotten = onlyonce.forgotten(s.scope),
       too_old = onlyonce.too_old(s.scope),
       class_before = s.class,
       class = $2,
       class_changed_at = greatest(
         clock_timestamp(),
         (select max(g.opened_at)
            from onlyonce.segments g where g.ring = onlyonce.class_ring(s.class))
       )
 where s.scope = $1`
