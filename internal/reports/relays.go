package reports

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/show"
)

// relaysSQL lists the relays that send the calls of each sink, by the database's clock. One row for
// a sink's lanes together.
const relaysSQL = `
select l.sink,
       max(e.epoch) as epoch,
       max(e.until) as until,
       bool_or((e.nonce is not null
                and e.until > clock_timestamp()
                and e.until <= clock_timestamp() + interval '1 hour') is true) as held,
       count(*) as lanes,
       count(*) filter (where e.nonce is not null
                          and e.until > clock_timestamp()
                          and e.until <= clock_timestamp() + interval '1 hour') as lanes_held,
       k.paused_at,
       k.paused_by,
       k.pause_reason
  from onlyonce.sink_lanes l join onlyonce.leases e on e.id = l.id left join onlyonce.sinks k on k.name = l.sink
 group by l.sink, k.name order by l.sink`

// membersSQL lists the leases by which relays show that they list a sink, for as long as they renew
// them. In: the prefix of their names, and of no other lease's (S5).
const membersSQL = `
select name from onlyonce.leases
 where name >= $1::text
   and name < left($1, -1) || '0'
   and until > clock_timestamp()
   and until <= clock_timestamp() + interval '1 hour'`

// SinkRelays describes the relays that send a sink's calls.
type SinkRelays struct {
	Sink      string     `json:"sink"`
	Epoch     int64      `json:"epoch" doc:"the highest of its lanes"`
	Until     *time.Time `json:"until" doc:"the latest end of a lane's lease; nil: all were given back"`
	Held      bool       `json:"held" doc:"a relay holds at least one lane"`
	Lanes     int64      `json:"lanes"`
	LanesHeld int64      `json:"lanes_held"`
	Members   int64      `json:"members" db:"-" doc:"relays that list it"`

	PausedAt    *time.Time `json:"paused_at" doc:"nil: calls to it are not paused"`
	PausedBy    *string    `json:"paused_by"`
	PauseReason *string    `json:"pause_reason"`
}

// Relays reads the relays that send the calls of each listed sink.
func Relays(ctx context.Context, tx pgx.Tx) ([]SinkRelays, error) {
	relays, err := Collect[SinkRelays](ctx, tx, relaysSQL)
	if err != nil {
		return nil, err
	}
	members, err := Texts(ctx, tx, membersSQL, names.AllRelays)
	if err != nil {
		return nil, err
	}
	for i := range relays {
		l := &relays[i]
		its := names.Relays(l.Sink).Prefix()
		for _, m := range members {
			if strings.HasPrefix(m, its) {
				l.Members++
			}
		}
	}
	return relays, nil
}

// unheldFor is how long a lane has no owner before that is reported. Its lease has ended or was
// given back by then, and all relays of the sink have looked for free lanes.
const unheldFor = 2 * time.Minute

// UnheldCalls are calls of a sink that wait in lanes without a relay for longer than a lease lasts.
type UnheldCalls struct {
	Sink    string  `json:"sink"`
	Calls   int64   `json:"calls"`
	Lanes   int     `json:"lanes"`
	Seconds float64 `json:"seconds" doc:"for how long no relay has held any of these lanes"`
}

// String says it without the sink.
func (u *UnheldCalls) String() string {
	return fmt.Sprintf("%s in %s that no relay has held for %s",
		show.Count(u.Calls, "call"), show.Count(int64(u.Lanes), "lane"), show.Ago(u.Seconds))
}

// Unheld finds the calls that wait in lanes without an owner, by sink (O5).
func Unheld(lanes []OutboxLane, waiting []WaitingCalls) []UnheldCalls {
	found := []UnheldCalls{}
	for i := range lanes {
		l := &lanes[i]
		calls := int64(0)
		for _, w := range waiting {
			if w.Sink == l.Sink && w.Lane != nil && *w.Lane == l.Lane {
				calls += w.Calls
			}
		}
		if calls == 0 || l.Unheld == nil || *l.Unheld < unheldFor.Seconds() {
			continue
		}
		if n := len(found); n == 0 || found[n-1].Sink != l.Sink { // lanes come by sink
			found = append(found, UnheldCalls{Sink: l.Sink, Seconds: *l.Unheld})
		}
		u := &found[len(found)-1]
		u.Calls += calls
		u.Lanes++
		u.Seconds = min(u.Seconds, *l.Unheld)
	}
	return found
}
