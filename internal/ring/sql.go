package ring

import (
	"strconv"
	"strings"
)

// In these statements, substitute replaces SEGMENT, SLOT and SEQUENCE by names and numbers that are
// constants of this module, and segmentSQL replaces EMPTIED by the segment's table and the one that
// is emptied with it.

// stateSQL reads all that decides on the next step. A segment's age counts by the clock and by
// watched time (package watch): a jump of the clock makes none old. In: ring, tables by slot,
// MaxBytes, MaxAge, Retention, whether the ring's horizon replaces these two. Out: one row.
//
// The size of the current segment is asked of the file system, with an ACCESS SHARE lock on the
// table for a moment. The row comes from the statement's snapshot, and last_value is read live. If
// a step commits between the two, they differ without a fault; the repair is harmless then, because
// the row's version fences it (T11, K6).
const stateSQL = `
select r.slots,
       r.cur,
       r.draining,
       r.closed,
       r.retired,
       r.version,
       v.last_value,
       pg_relation_size(t.cur) > 0 and (r.horizon is not null or not $6)
         and (pg_table_size(t.cur) >= $3
              or coalesce(c.opened_at + case when $6 then r.horizon / 7 else $4::interval end <= n.now, false)),
       coalesce(o.closed_at + case when $6 then r.horizon else $5::interval end <= n.now, false),
       exists (select from onlyonce.segments s
                where s.ring = r.name and greatest(s.opened_at, s.closed_at) > clock_timestamp() + interval '1 minute')
  from onlyonce.rings r
  cross join SEQUENCE v
  cross join lateral (select ($2::text[])[r.cur + 1]::regclass as cur) t
  cross join (select least(clock_timestamp(), w.at) as now from onlyonce.watched w) n
  left join onlyonce.segments c on c.ring = r.name and c.slot = r.cur
  left join onlyonce.segments o on o.ring = r.name and o.slot = r.closed[cardinality(r.closed)]
 where r.name = $1`

// rightsSQL lists what a role lacks. WHO is replaced by an expression that names the role. In:
// tables that are emptied, sequence, tables that are read, tables that are written, tables that are
// carried over into. From the catalogs; takes
// no lock.
const rightsSQL = `
select needed.privilege || ' on ' || needed.name
  from (select p as privilege, 'onlyonce.rings' as name from unnest(array['SELECT', 'UPDATE']) p
        union all select p, 'onlyonce.watched' from unnest(array['SELECT', 'UPDATE']) p
        union all select p, 'onlyonce.segments' from unnest(array['SELECT', 'UPDATE']) p
        union all select p, 'onlyonce.leases' from unnest(array['SELECT', 'INSERT', 'UPDATE']) p
        union all select p, t from unnest($1::text[]) t, unnest(array['SELECT', 'TRUNCATE']) p
        union all select 'SELECT', t from unnest($3::text[]) t
        union all select p, t from unnest($4::text[]) t, unnest(array['SELECT', 'INSERT', 'UPDATE']) p
        union all select 'INSERT', t from unnest($5::text[]) t) needed
 where not has_table_privilege(WHO, needed.name, needed.privilege)
union all
select 'USAGE on schema ' || n
  from unnest(array['onlyonce', 'onlyonce_segments']) n where not has_schema_privilege(WHO, n, 'USAGE')
union all
select p || ' on ' || $2::text
  from unnest(array['SELECT', 'UPDATE']) p where not has_sequence_privilege(WHO, $2::text, p)
order by 1`

// rotatorsSQL lists the logins that may rotate. In: as rightsSQL.
var rotatorsSQL = `select l.rolname::text from pg_roles l where l.rolcanlogin and not exists (` + strings.ReplaceAll(
	rightsSQL,
	"WHO",
	"l.oid",
) + `) order by 1`

// settingsSQL bounds a transaction and keeps its plans on indexes. It turns jit off: if only a
// sequential scan is possible, its cost seems huge, and the JIT compiler would run for a second.
// In: lock_timeout, idle_in_transaction_session_timeout.
const settingsSQL = `
select set_config('lock_timeout', $1, true),
       set_config('idle_in_transaction_session_timeout', $2, true),
       set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('enable_sort', 'off', true),
       set_config('jit', 'off', true)`

// holdSQL raises OO001 for a rotator that was replaced, and blocks a take-over until the
// transaction ends. In: lease, epoch, nonce.
const holdSQL = `select onlyonce.hold($1, $2, $3::uuid)`

// advanceSQL moves the sequence beyond both numbers, at once and visibly to all sessions. In: the
// row's version. Out: the next version. The lease is held, so no other rotator does this now. It
// does not use nextval, which after a restore might return what the row has had already.
const advanceSQL = `select setval('SEQUENCE', greatest(v.last_value, $1) + 1) from SEQUENCE v`

// The steps. In: ring, the version from which the step was derived, the next one. One row, or none
// if the row has moved. They lock the row of the ring, which writers read without a lock, and the
// segment's.
const (
	// announceSQL. Also in: the free slot.
	announceSQL = `
with moved as (
  update onlyonce.rings set draining = cur, cur = $4, version = $3 where name = $1 and version = $2 returning name)
update onlyonce.segments s set use_no = s.use_no + 1, opened_at = clock_timestamp(), closed_at = null, bound = null
  from moved m where s.ring = m.name and s.slot = $4::smallint`

	// closeSQL. Also in: the slot that drains; the id of ours that is above every transaction that
	// wrote into it; the number of the use.
	closeSQL = `
with moved as (
  update onlyonce.rings
     set closed = array_prepend(draining, closed), uses[draining + 1] = $6, draining = null, version = $3
   where name = $1 and version = $2 returning name)
update onlyonce.segments s set closed_at = clock_timestamp(), bound = $5::text::xid8
  from moved m where s.ring = m.name and s.slot = $4::smallint`

	// retireSQL. What is not asked any more counts as forgotten at once, in the same row: a claim
	// that does not search a segment sees that, in this row or in a later one. Also in: whether the
	// ring's horizon is the retention. It is compared again, because an operator may have set
	// another one since the step was derived, and their command says that it holds (K9).
	retireSQL = `
update onlyonce.rings r
   set retired = closed[cardinality(closed)], closed = closed[:cardinality(closed) - 1], version = $3,
       forgotten = greatest(
         r.forgotten,
         (select s.closed_at
            from onlyonce.segments s where s.ring = r.name and s.slot = r.closed[cardinality(r.closed)])
       )
 where name = $1 and version = $2
   and (not $4 or exists (select from onlyonce.segments s, onlyonce.watched w
                           where s.ring = r.name
                             and s.slot = r.closed[cardinality(r.closed)]
                             and s.closed_at + r.horizon <= least(clock_timestamp(), w.at)))`

	repairSQL = `update onlyonce.rings set version = $3 where name = $1 and version = $2`

	// truncatedSQL. Also in: the slot.
	truncatedSQL = `
with moved as (
  update onlyonce.rings set retired = null, version = $3 where name = $1 and version = $2 returning name)
update onlyonce.segments s set opened_at = null, closed_at = null, bound = null
  from moved m where s.ring = m.name and s.slot = $4::smallint`
)

// lockRowSQL locks the ring's row and reads what a TRUNCATE was derived from. In: ring. Out:
// version, retired.
const lockRowSQL = `select version, retired from onlyonce.rings where name = $1 for update`

// lockSQL and truncateSQL wait for sessions that read or write the segment, no longer than
// lock_timeout. Later sessions wait for them.
const (
	lockSQL     = `lock table EMPTIED in access exclusive mode`
	truncateSQL = `truncate table EMPTIED`
)

// substitute puts a ring's names into a statement.
func substitute(sql, sequence, table string, slot int16) string {
	return strings.NewReplacer("SEQUENCE", sequence, "SEGMENT", table, "SLOT", strconv.Itoa(int(slot))).Replace(sql)
}
