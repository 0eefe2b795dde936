package scenario

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// checkSQL decides the invariants from one snapshot. In: scope, topic, whether ids count, whether
// ordering keys are parked, whether everything must be done, and of each record that was written
// its partition, offset, key, id, value and whether it asks for a call. Out: one row of text for
// each violation.
const checkSQL = `
with written as (
  select * from unnest(
    $6::int[],
    $7::bigint[],
    $8::text[],
    $9::text[],
    $10::text[],
    $11::bool[]
  )
    with ordinality as u(part, off, ord, id, value, calls, seq)),
message as (select distinct on (value) * from written order by value, seq),
effect as (select value, part, off, n from effects),
position as (select partition as part, next_offset as at from onlyonce.positions where scope = $1 and topic = $2),
done as (
  select c.partition as part, d."offset" as off
    from onlyonce.done d join onlyonce.cursors c on c.id = d.cursor_id and c.run = d.run
   where c.scope = $1 and c.topic = $2),
set_aside as (
  select w.value,
         w.ord,
         w.id,
         w.seq,
         p.state,
         p.reason,
         p.settled_at,
         p.key,
         p.partition,
         p."offset"
    from onlyonce.parked p left join written w on (w.part, w.off) = (p.partition, p."offset")
   where p.kind = 'message' and p.scope = $1 and p.topic = $2),
aside as (select * from set_aside where settled_at is null),
call as (select convert_from(body, 'UTF8') as value, count(*) as n
           from onlyonce.outbox_log where scope = $1 group by 1),
found(what, value) as (
  select 'I1 lost', m.value from message m
   where $5
     and not exists (select 1 from effect e where e.value = m.value)
     and not exists (select 1 from aside a where a.value = m.value)
  union all
  select 'I2 applied ' || count(*) || ' times', e.value from effect e group by e.value having count(*) > 1
  union all
  select 'I3 invented', e.value from effect e where not exists (select 1 from message m where m.value = e.value)
  union all
  select 'I3 parked what was never written, at offset', a.partition || '/' || a."offset"
    from set_aside a where a.value is null
  union all
  select 'I3 parked twice', a.value from aside a group by a.value, a.id having count(*) > 1 and a.id <> ''
  union all
  select 'I4 applied without its key', e.value from effect e join message m using (value)
   where $3 and not exists (select 1 from onlyonce.inbox i where i.key = onlyonce.key('', $1, m.id))
  union all
  select 'I4 key without effect or parked row', i.key::text from onlyonce.inbox i
   where $3
     and not exists (select 1 from effect e join message m using (value) where onlyonce.key('', $1, m.id) = i.key)
     and not exists (select 1 from aside a where a.key = i.key)
  union all
  select 'I4 applied without its call', e.value from effect e join message m using (value)
   where m.calls and not exists (select 1 from call c where c.value = m.value)
  union all
  select 'I4 call without its effect', c.value
    from call c where not exists (select 1 from effect e where e.value = c.value)
  union all
  select 'I4 ' || c.n || ' calls', c.value from call c where c.n > 1
  union all
  select 'I4 applied above the position', e.value from effect e
   where e.off >= coalesce((select at from position p where p.part = e.part), 0)
     and not exists (select 1 from done d where d.part = e.part and d.off = e.off)
  union all
  select 'I5 applied and parked', a.value
    from aside a join effect e using (value) where a.reason not in ('conflict', 'no-key')
  union all
  select 'I5 resolved without effect', a.value from set_aside a
   where a.state = 'resolved' and not exists (select 1 from effect e where e.value = a.value)
  union all
  select 'I6 applied before ' || n.value, o.value
    from effect o join message om on om.value = o.value
    join message nm on nm.ord = om.ord and nm.seq < om.seq join effect n on n.value = nm.value
   where om.ord <> '' and o.n < n.n and o.off >= 0 and n.off >= 0
  union all
  select 'I6 applied in front of the parked ' || a.value, e.value
    from aside a join message m on m.ord = a.ord and m.seq > a.seq join effect e on e.value = m.value
   where $4 and m.ord <> ''
  union all
  select 'I7 passed over', w.value from written w
   where (exists (select 1 from position p where p.part = w.part and w.off < p.at)
          or exists (select 1 from done d where d.part = w.part and d.off = w.off))
     and not exists (select 1 from effect e where e.value = w.value)
     and not exists (select 1 from aside a where a.value = w.value)
  union all
  select 'I13 not reached', w.value from written w
   where $5 and w.off >= coalesce((select at from position p where p.part = w.part), 0)
  union all
  select 'I13 still ' || a.state, a.value from aside a
   where $5 and (a.state = 'retrying' or a.state = 'blocked' and not exists (
         select 1 from aside f where f.ord = a.ord and f.seq < a.seq)))
select what || ': ' || coalesce(value, '?') from found order by 1`

// Check returns the invariants that do not hold at this moment, in one snapshot of the database.
// With done, every message must be applied or parked, and no work may be under way.
func (x *Mix) Check(ctx context.Context, pool *pgxpool.Pool, done bool) ([]string, error) {
	// Up to the snapshot: a message that is written after this list was made must not be found
	// applied.
	x.mu.Lock()
	defer x.mu.Unlock()
	written := x.messages
	n := len(written)
	parts := make([]int32, n)
	offs := make([]int64, n)
	calls := make([]bool, n)
	ords := make([]string, n)
	ids := make([]string, n)
	values := make([]string, n)
	keyed := false
	for i, m := range written {
		parts[i] = m.Partition
		offs[i] = m.Offset
		ords[i] = m.Key
		ids[i] = m.ID
		values[i] = m.Value
		calls[i] = m.Calls
		if x.Unordered {
			ords[i] = ""
		}
		keyed = keyed || m.ID != ""
	}
	rows, err := pool.Query(
		ctx,
		checkSQL,
		x.Scope,
		x.Topic,
		keyed && !x.PositionsOnly,
		x.Ordered,
		done,
		parts,
		offs,
		ords,
		ids,
		values,
		calls,
	)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// Counts are what a database holds of a mix.
type Counts struct {
	Effects, Parked, Resolved, Calls, Keys int
	Position                               int64 // of all partitions together
}

func (c Counts) String() string {
	return fmt.Sprintf("%d effects, %d parked, %d resolved, %d calls, %d keys, position %d",
		c.Effects, c.Parked, c.Resolved, c.Calls, c.Keys, c.Position)
}

const countSQL = `
select (select count(*) from effects),
       (select count(*) from onlyonce.parked where scope = $1 and settled_at is null),
       (select count(*) from onlyonce.parked where scope = $1 and state = 'resolved'),
       (select count(*) from onlyonce.outbox_log where scope = $1),
       (select count(*) from onlyonce.inbox),
       (select coalesce(sum(next_offset), 0) from onlyonce.positions where scope = $1 and topic = $2)`

// Count counts.
func (x *Mix) Count(ctx context.Context, pool *pgxpool.Pool) (c Counts, err error) {
	err = pool.QueryRow(ctx, countSQL, x.Scope, x.Topic).Scan(&c.Effects, &c.Parked, &c.Resolved, &c.Calls, &c.Keys, &c.Position)
	return c, err
}
