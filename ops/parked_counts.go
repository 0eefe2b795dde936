package ops

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
)

const (
	// mostGroups is how many groups of parked rows are returned at most.
	mostGroups = 1000
	// mostSettled is up to how many settled rows are counted.
	mostSettled = 10_000
)

// parkedCountsSQL counts the parked rows that are not settled. In: see parkedFilter, where the
// limit is of groups, and whether to group by the first 80 characters of the error too. The largest
// group comes first. By the index parked_open, or parked_position if a scope is given; without
// bodies.
const parkedCountsSQL = `
select kind, scope, sink, reason, state, error, count(*) as count, min(parked_at) as oldest,
       extract(epoch from clock_timestamp() - min(parked_at))::float8 as oldest_age_seconds
  from (select kind, scope, sink, reason, state, parked_at,
               case when $13::boolean then left(split_part(error, E'\n', 1), 80) else '' end as error
          from onlyonce.parked where settled_at is null and ` + parkedFilter + `) p
 group by kind, scope, sink, reason, state, error
 order by count(*) desc, kind, scope, sink, reason, state, error limit $4`

// settledCountSQL counts settled rows, up to a number. In: see parkedFilter, where the limit is
// that number. Reads rows without their bodies until it has found so many.
const settledCountSQL = `
select count(*) as count from (
  select from onlyonce.parked where settled_at is not null and ` + parkedFilter + ` limit $4) p`

// ParkedCount counts the parked rows of one group.
type ParkedCount struct {
	Kind             string    `json:"kind" doc:"message, call or event"`
	Scope            string    `json:"scope"`
	Sink             *string   `json:"sink" doc:"of calls"`
	Reason           string    `json:"reason"`
	State            string    `json:"state" doc:"waiting, retrying, blocked or reconcile"`
	Error            string    `json:"error,omitempty" doc:"what the errors begin with, if they are counted by it"`
	Count            int64     `json:"count"`
	Oldest           time.Time `json:"oldest" doc:"when the oldest of them was parked"`
	OldestAgeSeconds float64   `json:"oldest_age_seconds" doc:"how long ago that was, by the database's clock"`
}

// NeedsOperator reports whether the rows wait for an operator's decision.
func (c *ParkedCount) NeedsOperator() bool { return c.State == "waiting" || c.State == "reconcile" }

// ParkedTotals is the result of [ParkedCounts].
type ParkedTotals struct {
	Groups      []ParkedCount `json:"groups" doc:"the rows that are not settled, the largest group first, at most 1,000"`
	Counted     bool          `json:"counted" doc:"false if counting took over 5 s: groups is then empty"`
	Settled     *int64        `json:"settled" doc:"how many rows are settled, up to 10,000. nil: that took over 5 s"`
	SettledMore bool          `json:"settled_more" doc:"there are more than settled"`
}

// ParkedQuestion is the input of [ParkedCounts].
type ParkedQuestion struct {
	// Filter picks rows; ParkedCounts ignores its Unsettled, Before, After and Limit, and for
	// settled rows its State.
	Filter     ParkedListFilter
	ByError    bool          // group by the first 80 characters of the error too
	CountLimit time.Duration // for how long each of the two counts may run; 0: 5 s
}

// ParkedCounts counts parked rows by kind, scope, sink, reason and state, and the settled ones
// together. It reads the rows that are not settled, by an index and without bodies, and at most
// 10,000 settled ones. Each of the two counts takes at most CountLimit.
func ParkedCounts(ctx context.Context, db DB, q ParkedQuestion) (t *ParkedTotals, err error) {
	return reports.Look(ctx, db, func(tx pgx.Tx) (*ParkedTotals, error) { return readParkedCounts(ctx, tx, q) })
}

func readParkedCounts(ctx context.Context, tx pgx.Tx, q ParkedQuestion) (*ParkedTotals, error) {
	groups, err := reports.CollectWithin[ParkedCount](ctx, tx, q.CountLimit, parkedCountsSQL, append(q.Filter.args(mostGroups), q.ByError)...)
	if err != nil {
		return nil, err
	}
	t := &ParkedTotals{Groups: groups, Counted: groups != nil}
	if groups == nil {
		t.Groups = []ParkedCount{}
	}
	type counted struct{ Count int64 }
	q.Filter.State = ""
	settled, err := reports.CollectWithin[counted](ctx, tx, q.CountLimit, settledCountSQL, q.Filter.args(mostSettled+1)...)
	if err != nil || settled == nil {
		return t, err
	}
	n := min(settled[0].Count, mostSettled)
	t.Settled, t.SettledMore = &n, settled[0].Count > mostSettled
	return t, nil
}
