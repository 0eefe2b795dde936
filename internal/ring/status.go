package ring

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Status is the state of a ring.
type Status struct {
	Name     string
	Version  int64
	Sequence int64 // differs from Version while a step is under way, or after a rotator died in one
	Segments []SegmentStatus
}

// SegmentStatus is one slot of a ring.
type SegmentStatus struct {
	Slot  int16
	State string // current, draining, closed, retired or free
	Table string
	UseNo int64
	Bytes int64 // with what is stored out of line, without indexes
	Rows  int64 // estimate
	// OpenFor and ClosedFor are ages by the database's clock. They are nil if the segment was not
	// opened or closed since it was last emptied.
	OpenFor, ClosedFor *time.Duration
}

// DB is what ReadStatus needs.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// statusSQL reads a ring. In: ring, tables by slot. Out: one row for each segment, ordered by slot.
// Its estimate of rows is that of the statistics, or of the last analyze if there are none: a
// standby has no statistics, and a server loses them in a crash. Takes an ACCESS SHARE lock on each
// segment for a moment.
const statusSQL = `
select r.version,
       v.last_value,
       s.slot,
       case when s.slot = r.cur then 'current'
            when s.slot = r.draining then 'draining'
            when s.slot = any (r.closed) then 'closed'
            when s.slot = r.retired then 'retired'
            else 'free' end,
       t.name,
       s.use_no,
       pg_table_size(t.name::regclass),
       coalesce(
         nullif(pg_stat_get_live_tuples(t.name::regclass), 0),
         (select greatest(reltuples, 0)::bigint from pg_class where oid = t.name::regclass)
       ),
       (extract(epoch from clock_timestamp() - s.opened_at) * 1000)::bigint,
       (extract(epoch from clock_timestamp() - s.closed_at) * 1000)::bigint
  from onlyonce.rings r
  cross join SEQUENCE v
  join onlyonce.segments s on s.ring = r.name
  cross join lateral (select ($2::text[])[s.slot + 1] as name) t
 where r.name = $1 and t.name is not null and (s.slot < r.slots or s.slot = any (r.closed) or s.slot = r.retired)
 order by s.slot`

// ReadStatus returns the state of a ring.
func ReadStatus(ctx context.Context, db DB, ring Ring) (Status, error) {
	st := Status{Name: ring.Name}
	rows, err := db.Query(ctx, substitute(statusSQL, ring.Sequence, "", 0), ring.Name, ring.Tables)
	if err != nil {
		return Status{}, fmt.Errorf("reading ring %s: %w", ring.Name, err)
	}
	st.Segments, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s SegmentStatus, err error) {
		var open, closed *int64
		err = row.Scan(
			&st.Version, &st.Sequence, &s.Slot, &s.State, &s.Table, &s.UseNo, &s.Bytes, &s.Rows,
			&open, &closed,
		)
		s.OpenFor, s.ClosedFor = milliseconds(open), milliseconds(closed)
		return s, err
	})
	if err == nil && len(st.Segments) == 0 {
		err = errors.New("there is no such ring")
	}
	if err != nil {
		return Status{}, fmt.Errorf("reading ring %s: %w", ring.Name, err)
	}
	return st, nil
}

// Rotators returns the names of the logins that have the rights to rotate a ring, including
// superusers.
func Rotators(ctx context.Context, db DB, ring Ring) ([]string, error) {
	rows, err := db.Query(ctx, rotatorsSQL, ring.rights()...)
	if err != nil {
		return nil, fmt.Errorf("reading who may rotate ring %s: %w", ring.Name, err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func milliseconds(n *int64) *time.Duration {
	if n == nil {
		return nil
	}
	d := time.Duration(*n) * time.Millisecond
	return &d
}

// Status returns the state of the ring.
func (r *Rotator) Status(ctx context.Context) (Status, error) { return ReadStatus(ctx, r.pool, r.ring) }
