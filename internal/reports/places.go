package reports

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// placesSQL lists places. In: place (null: any), state (null: any), how many rows. By the primary
// key.
const placesSQL = `
select place, state, moves, coalesce(other, '') as other, changed_at from onlyonce.places
 where ($1::text is null or place = $1) and ($2::text is null or state = $2) order by place limit $3`

// PlaceFilter picks places. The zero value picks the first 100.
type PlaceFilter struct {
	Place string `flag:"place" arg:"P" doc:"only the place P, for example a tenant"`
	State string `flag:"state" arg:"STATE" choices:"claimed,here,leaving,left" doc:"only those in STATE: claimed, here, leaving or left"`
	Limit int    `flag:"limit" arg:"N" least:"1" most:"10000" doc:"at most N places (default 100)"`
}

// Places returns the places that the filter picks, as rows of type T, by their names, and whether
// there are more.
func Places[T any](ctx context.Context, tx pgx.Tx, f PlaceFilter) (places []T, more bool, err error) {
	places, err = Collect[T](ctx, tx, placesSQL, OrNull(f.Place), OrNull(f.State), LimitOf(f.Limit))
	places, more = Cut(places, f.Limit)
	return places, more, err
}
