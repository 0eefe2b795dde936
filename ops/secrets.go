package ops

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/presence"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
)

// changedKeysSQL lists the ids of secrets under which a process with another secret was refused
// within an hour (H30), when, and how long ago. Reads onlyonce.http_fingerprint_keys, which is
// small.
const changedKeysSQL = `
select id, refused_at as refused, extract(epoch from clock_timestamp() - refused_at)::float8 as age
  from onlyonce.http_fingerprint_keys where refused_at > clock_timestamp() - interval '1 hour' order by id`

type changedKey struct {
	ID      int64
	Refused time.Time
	Age     float64
}

// secretFaults are the processes of the HTTP layer that have another secret than those before them:
// status and doctor show them alike.
func secretFaults(ctx context.Context, tx pgx.Tx) ([]Fault, error) {
	changed, err := reports.Collect[changedKey](ctx, tx, changedKeysSQL)
	var all []Fault
	for _, k := range changed {
		all = append(all, Fault{
			Kind:      faultSecret,
			Part:      presence.Layer,
			Scope:     fmt.Sprintf("FingerprintKeys %d", k.ID),
			Processes: 1,
			For:       k.Age,
			Text: fmt.Sprintf("a process has another secret under the id %d of FingerprintKeys than "+
				"processes before it: it does not start, or answers 503 fingerprint-key-changed, last at %s",
				k.ID, show.Instant(k.Refused)),
		})
	}
	return all, err
}
