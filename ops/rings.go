package ops

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/ring"
)

// keyRingsSQL reads what the rings of keys are set to, and their filters. In: their names. Out: a row for each:
// horizon in seconds (null: for ever), filters, their bytes. By the primary keys.
const keyRingsSQL = `
select r.name as ring, extract(epoch from r.horizon)::float8 as horizon, count(distinct f.use) as filters, coalesce(sum(octet_length(f.filter)), 0)::bigint as filter_bytes
  from onlyonce.rings r left join onlyonce.filters f on f.ring = r.name
 where r.name = any ($1::text[]) group by r.name order by array_position($1::text[], r.name)`

// KeyRing is a ring of claimed keys.
type KeyRing struct {
	Ring        string       `json:"ring"`
	Horizon     *float64     `json:"horizon_seconds"` // how long a key is remembered at least; nil: for ever
	Filters     int64        `json:"filters"`         // of closed segments
	FilterBytes int64        `json:"filter_bytes"`
	Segments    []KeySegment `json:"segments" db:"-"`
}

// KeySegment is a table of a ring of claimed keys.
type KeySegment struct {
	Table  string   `json:"table"`
	State  string   `json:"state"`          // current, draining, closed, retired or free
	Bytes  int64    `json:"bytes"`          // without indexes
	Keys   int64    `json:"keys"`           // the server's estimate
	Opened *float64 `json:"opened_seconds"` // ago; nil: not since it was last emptied
	Closed *float64 `json:"closed_seconds"` // ago; nil: not since it was last emptied
}

// readKeyRings reads the rings of keys, in the order of [ring.Keys].
func readKeyRings(ctx context.Context, tx pgx.Tx) ([]KeyRing, error) {
	var names []string
	for _, which := range ring.Keys() {
		names = append(names, which.Name)
	}
	rings, err := collect[KeyRing](ctx, tx, keyRingsSQL, names)
	if err != nil {
		return nil, err
	}
	for i, which := range ring.Keys() {
		st, err := ring.ReadStatus(ctx, tx, which)
		if err != nil {
			return nil, err
		}
		for _, s := range st.Segments {
			rings[i].Segments = append(rings[i].Segments, KeySegment{Table: s.Table, State: s.State, Bytes: s.Bytes, Keys: s.Rows,
				Opened: inSeconds(s.OpenFor), Closed: inSeconds(s.ClosedFor)})
		}
	}
	return rings, nil
}

func inSeconds(d *time.Duration) *float64 {
	if d == nil {
		return nil
	}
	s := d.Seconds()
	return &s
}
