package ops

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
)

// SequenceBehind is a sequence that would give out what is in use. Logical replication copies rows
// and leaves sequences where they were.
type SequenceBehind struct {
	Name   string `json:"name" doc:"without the schema"`
	Stands int64  `json:"stands" doc:"the last number that it gave out; 0: none"`
	Needs  int64  `json:"needs" doc:"the number that it must have given out at least"`
	Ring   bool   `json:"-"` // it has the number of a ring's version
}

// idsBehindSQL finds sequences of ids below an id that is in use. The bounds are read first: a
// sequence that is read after them is above each of their ids, unless it is behind. An id of a call
// is that of its batch and a number below 1,024. By primary keys; of batches by each lane's and
// each parked call's id, and those of the log in all. No rows: none is behind.
const idsBehindSQL = `
with used as materialized (
  select (select coalesce(max(id), 0) from onlyonce.leases) as leases,
         (select coalesce(max(id), 0) from onlyonce.audit) as audit,
         (select coalesce(max(id), 0) from onlyonce.parked) as parked,
         (select coalesce(max(id), 0)::bigint from onlyonce.streams) as streams,
         greatest(
           (select max(id) from onlyonce.batches),
           (select max(row_id) from onlyonce.parked where row_id is not null),
           (select max(last_id) from onlyonce.lanes),
           0
         ) / 1024 * 1024 as batches),
stand as (
  select 'leases_id_seq' as name, case when is_called then last_value else 0 end as stands, u.leases as needs
    from onlyonce.leases_id_seq, used u
  union all
  select 'audit_id_seq', case when is_called then last_value else 0 end, u.audit from onlyonce.audit_id_seq, used u
  union all
  select 'parked_id_seq', case when is_called then last_value else 0 end, u.parked from onlyonce.parked_id_seq, used u
  union all
  select 'streams_id_seq', case when is_called then last_value else 0 end, u.streams
    from onlyonce.streams_id_seq, used u
  union all
  select 'outbox_id', case when is_called then last_value else 0 end, u.batches from onlyonce.outbox_id, used u)
select name, stands, needs, false as ring from stand where stands < needs order by name`

// ringsBehindSQL finds sequences below the version of their ring. Until the next rotation,
// transactions above READ COMMITTED that use the ring would fail with 40001. The views of the
// catalog show a sequence's number to those who may read it. No rows: none is behind.
const ringsBehindSQL = `
select s.sequencename::text as name, coalesce(s.last_value, 0) as stands, r.version as needs, true as ring
  from onlyonce.rings r
  join pg_sequences s on s.schemaname = 'onlyonce' and s.sequencename = r.name || '_version'
 where coalesce(s.last_value, 0) < r.version order by 1`

// lockRingsSQL holds up rotations, whose steps set the version and its sequence.
const lockRingsSQL = `select name from onlyonce.rings order by name for update`

// raiseSQL raises a sequence. In: its name, what it needs.
const raiseSQL = `select setval(('onlyonce.' || quote_ident($1))::regclass, $2)`

// sequencesBehind finds all of them.
func sequencesBehind(ctx context.Context, tx pgx.Tx) (all []SequenceBehind, err error) {
	for _, sql := range []string{idsBehindSQL, ringsBehindSQL} {
		some, err := reports.Collect[SequenceBehind](ctx, tx, sql)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// raiseIDs raises sequences of ids. Only upwards, and not undone by a rollback: ids that are passed
// over do no harm.
func raiseIDs(ctx context.Context, tx pgx.Tx, behind []SequenceBehind) error {
	for _, s := range behind {
		if s.Ring {
			continue
		}
		if _, err := tx.Exec(ctx, raiseSQL, s.Name, s.Needs); err != nil {
			return err
		}
	}
	return nil
}

// raiseRings raises sequences of rings' versions, of what is behind under the lock on the rings.
func raiseRings(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, lockRingsSQL); err != nil {
		return err
	}
	behind, err := reports.Collect[SequenceBehind](ctx, tx, ringsBehindSQL)
	if err != nil {
		return err
	}
	for _, s := range behind {
		if _, err := tx.Exec(ctx, raiseSQL, s.Name, s.Needs); err != nil {
			return err
		}
	}
	return nil
}
