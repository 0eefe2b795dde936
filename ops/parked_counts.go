package ops

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
)

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
	ParkedFilter               // its ID and Limit do not count
	ByError      bool          // group by the first 80 characters of the error too
	CountLimit   time.Duration // for how long each of the two counts may run; 0: 5 s
}

// ParkedCounts counts parked rows by kind, scope, sink, reason and state, and the settled ones
// together. It reads the rows that are not settled, by an index and without bodies, and at most
// 10,000 settled ones. Each of the two counts takes at most CountLimit.
func ParkedCounts(ctx context.Context, db DB, q ParkedQuestion) (t *ParkedTotals, err error) {
	return reports.Look(ctx, db, func(tx pgx.Tx) (*ParkedTotals, error) { return readParkedCounts(ctx, tx, q) })
}

func readParkedCounts(ctx context.Context, tx pgx.Tx, q ParkedQuestion) (t *ParkedTotals, err error) {
	t = &ParkedTotals{}
	f := reports.ParkedFilter{Scope: q.Scope, Kind: q.Kind, State: q.State, Reason: q.Reason, ErrorPrefix: q.ErrorPrefix, Sink: q.Sink, Name: q.Name, Topic: q.Topic, Partition: q.Partition}
	t.Groups, t.Settled, t.SettledMore, err = reports.CountParked[ParkedCount](ctx, tx, f, q.ByError, q.CountLimit)
	if t.Counted = t.Groups != nil; !t.Counted {
		t.Groups = []ParkedCount{}
	}
	return t, err
}
