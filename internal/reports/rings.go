package reports

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/ring"
	"github.com/onlyonce/onlyonce/internal/show"
)

// keyRingsSQL reads the settings of the rings of keys, and their filters. In: their names. Out: a
// row for each, in that order: horizon in seconds (null: forever), filters, their bytes. By the
// primary keys.
const keyRingsSQL = `
select r.name as ring,
       extract(epoch from r.horizon)::float8 as horizon,
       count(distinct f.use) as filters,
       coalesce(sum(octet_length(f.filter)), 0)::bigint as filter_bytes
  from onlyonce.rings r left join onlyonce.filters f on f.ring = r.name
 where r.name = any ($1::text[]) group by r.name order by array_position($1::text[], r.name)`

// KeyRing is a ring of claimed keys.
type KeyRing struct {
	Ring        string       `json:"ring"`
	Horizon     *float64     `json:"horizon_seconds" doc:"how long a key is remembered at least; nil: for ever"`
	Filters     int64        `json:"filters" doc:"of closed segments"`
	FilterBytes int64        `json:"filter_bytes"`
	Segments    []KeySegment `json:"segments" db:"-"`
}

// KeySegment is a table of a ring of claimed keys.
type KeySegment struct {
	Table  string   `json:"table"`
	State  string   `json:"state" doc:"current, draining, closed, retired or free"`
	Bytes  int64    `json:"bytes" doc:"without indexes"`
	Keys   int64    `json:"keys" doc:"the server's estimate"`
	Opened *float64 `json:"opened_seconds" doc:"ago; nil: not since it was last emptied"`
	Closed *float64 `json:"closed_seconds" doc:"ago; nil: not since it was last emptied"`
}

// KeyRings reads the rings of keys, in the order of [ring.Keys].
func KeyRings(ctx context.Context, tx pgx.Tx) ([]KeyRing, error) {
	var names []string
	for _, which := range ring.Keys() {
		names = append(names, which.Name)
	}
	rings, err := Collect[KeyRing](ctx, tx, keyRingsSQL, names)
	if err != nil {
		return nil, err
	}
	for i, which := range ring.Keys() {
		st, err := ring.ReadStatus(ctx, tx, which)
		if err != nil {
			return nil, err
		}
		for _, s := range st.Segments {
			rings[i].Segments = append(rings[i].Segments, KeySegment{
				Table:  s.Table,
				State:  s.State,
				Bytes:  s.Bytes,
				Keys:   s.Rows,
				Opened: inSeconds(s.OpenFor),
				Closed: inSeconds(s.ClosedFor),
			})
		}
	}
	return rings, nil
}

// RingMemory is how long a ring of keys remembers.
type RingMemory struct {
	Ring        string   `json:"ring"`
	Horizon     *float64 `json:"horizon_seconds" doc:"nil: for ever"`
	CompleteFor float64  `json:"complete_for_seconds" doc:"for how long it has held every key"`
}

// Memory reads since when the rings hold every key. A segment is emptied whole, so they do since
// the oldest of those that are asked was opened.
func Memory(ctx context.Context, tx pgx.Tx) (all []RingMemory, err error) {
	rings, err := KeyRings(ctx, tx)
	for _, k := range rings {
		m := RingMemory{Ring: k.Ring, Horizon: k.Horizon}
		for _, s := range k.Segments {
			asked := s.State == "current" || s.State == "draining" || s.State == "closed"
			if asked && s.Opened != nil {
				m.CompleteFor = max(m.CompleteFor, *s.Opened)
			}
		}
		all = append(all, m)
	}
	return all, err
}

// Unused reports whether nothing is in the ring.
func (k *KeyRing) Unused() bool {
	return !slices.ContainsFunc(k.Segments, func(s KeySegment) bool {
		return s.Bytes > 0 || s.State != "current" && s.State != "free"
	})
}

func inSeconds(d *time.Duration) *float64 {
	if d == nil {
		return nil
	}
	return new(d.Seconds())
}

// ClockAhead is how far a frontier may be ahead of the database's clock. One that is further ahead
// was recorded before the clock went back.
const ClockAhead = time.Minute

// frontiersSQL lists the cursors that hold back the retention of the consumers' rings most. Before
// them it lists those whose frontier is ahead of the clock, which hold back too little. Out: scope,
// topic, partition, age in seconds by the clock (null: not known; below 0: ahead), the ring of the
// scope's class. While the class changes, that is the one of the two rings whose horizon is
// shorter, because its tables suffice for less. In: how many seconds count as ahead. Reads one row
// of onlyonce.cursors and one of onlyonce.frontiers for each cursor in use.
const frontiersSQL = `
select c.scope,
       c.topic,
       c.partition,
       extract(epoch from clock_timestamp() - f.frontier)::float8 as behind,
       (select r.name from onlyonce.rings r
         where r.name in (onlyonce.class_ring(coalesce(s.class, 'standard')),
                          onlyonce.class_ring(
                            case when s.class_before is not null then onlyonce.class_before(s.scope) end))
         order by r.horizon limit 1) as ring
  from onlyonce.cursors c
  left join onlyonce.frontiers f on f.cursor_id = c.id and f.run = c.run
  left join onlyonce.scopes s on s.scope = c.scope
 where c.retired_at is null and c.cluster_id is distinct from 'postgres'
 order by (f.frontier > clock_timestamp() + make_interval(secs => $1)) is true desc, f.frontier nulls first, 1, 2, 3
 limit 10`

// Frontier is the time, by the database's clock, up to which a cursor has certainly passed its log.
type Frontier struct {
	Scope     string   `json:"scope"`
	Topic     string   `json:"topic"`
	Partition int32    `json:"partition"`
	Behind    *float64 `json:"behind_seconds" doc:"nil: the owner has not said; below 0: ahead"`
	Ring      string   `json:"ring" doc:"of the scope's keys; while its class changes, the one of the shorter horizon"`
}

// Ahead reports whether the frontier is in the database's future: it was recorded before the clock
// went back.
func (f *Frontier) Ahead() bool { return f.Behind != nil && *f.Behind < -ClockAhead.Seconds() }

// BehindText describes how old the frontier is.
func (f *Frontier) BehindText() string {
	switch {
	case f.Behind == nil:
		return "unknown"
	case f.Ahead():
		return "ahead by " + show.Span(show.Seconds(-*f.Behind))
	}
	return show.Ago(*f.Behind)
}

// Frontiers reads the cursors that hold back retention most.
func Frontiers(ctx context.Context, tx pgx.Tx) ([]Frontier, error) {
	return Collect[Frontier](ctx, tx, frontiersSQL, ClockAhead.Seconds())
}

// InboxReport is the state of the claimed keys.
type InboxReport struct {
	Rings     []KeyRing  `json:"rings"`
	Frontiers []Frontier `json:"frontiers" doc:"that hold back retention most, at most 10"`
}

// Inbox returns the state of the claimed keys on one snapshot: their rings, and the cursors that
// hold back what is forgotten. It reads the rows of rings and segments, the sizes of their filters,
// and one row for each cursor in use. It reads no keys: their number is the server's estimate.
func Inbox(ctx context.Context, db DB) (*InboxReport, error) {
	return Look(ctx, db, func(tx pgx.Tx) (r *InboxReport, err error) {
		r = &InboxReport{}
		if r.Rings, err = KeyRings(ctx, tx); err == nil {
			r.Frontiers, err = Frontiers(ctx, tx)
		}
		return r, err
	})
}
