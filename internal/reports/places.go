package reports

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// placesSQL lists places. In: place (null: any), state (null: any), how many rows. By the primary
// key.
const placesSQL = `
select place,
       state,
       moves,
       coalesce(other, '') as other,
       changed_at
  from onlyonce.places
 where ($1::text is null or place = $1) and ($2::text is null or state = $2) order by place limit $3`

// Place is a database's state of a place, for example of a tenant.
type Place struct {
	Place string `json:"place"`
	// claimed, while a process asks the other databases whether the place lives there; here;
	// leaving, while running work ends and new work is refused; or left
	State     string    `json:"state" doc:"above"`
	Other     string    `json:"other" doc:"where it goes, or came from"`
	Moves     int64     `json:"moves" doc:"how often it had moved then"`
	ChangedAt time.Time `json:"changed_at"`
}

// PlaceFilter picks places. The zero value picks the first 100.
type PlaceFilter struct {
	Place string
	State string
	Limit int
}

// Places returns the places that the filter picks, by their names, and whether there are more.
func Places(ctx context.Context, tx pgx.Tx, f PlaceFilter) (places []Place, more bool, err error) {
	places, err = Collect[Place](ctx, tx, placesSQL, OrNull(f.Place), OrNull(f.State), LimitOf(f.Limit))
	places, more = Cut(places, f.Limit)
	return places, more, err
}
