package ops

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/names"
	"github.com/onlyonce/onlyonce/internal/reports"
)

// remainingSQL counts what was begun for a place and has not ended, except for events that no
// consumer has handled. In: place. One row: operations; events that are parked and not settled.
const remainingSQL = `
select (select count(*) from onlyonce.operations o where o.tenant = $1 and o.completed_at is null),
       (select count(*) from onlyonce.parked p
         where p.id > 0
           and p.kind = 'event'
           and p.settled_at is null
           and (p.tenant = $1 or p.tenant = '' and p.topic = '` + names.WebhookStreams + `' || $1))`

// unhandledSQL counts events of a place that a consumer has not handled, or that none has begun to
// read. An event without a tenant belongs to the place that is named as its endpoint. In: place;
// what an earlier count has found, an element for each partition. Out: a row for each partition.
// After an earlier count it counts only above where that has ended, unless a position was set back
// since: offsets rise in the order of commits. Reads the log from the lowest position on.
const unhandledSQL = `
select s.id as stream,
       g.partition,
       b.floor,
       c.upto,
       c.events
  from onlyonce.streams s cross join lateral generate_series(0, s.partitions - 1) g (partition)
  left join unnest($2::integer[], $3::integer[], $4::bigint[], $5::bigint[]) n (stream, partition, floor, upto)
    on n.stream = s.id and n.partition = g.partition
 cross join lateral (
   select coalesce(min(p.next_offset), 0) as floor
     from onlyonce.positions p where p.topic = s.topic and p.partition = g.partition and p.retired_at is null) b
 cross join lateral (select case when b.floor < n.floor then b.floor else greatest(b.floor, n.upto) end as start) f
 cross join lateral (
   select coalesce(max(l."offset") + 1, f.start) as upto,
          count(*) filter (where l.tenant = $1
                             or l.tenant = '' and s.topic = '` + names.WebhookStreams + `' || $1) as events
     from onlyonce.event_log l where l.stream = s.id and l.partition = g.partition and l."offset" >= f.start) c`

// leaveTimeout bounds LeavePlace, which may have a large log to count.
const leaveTimeout = 10 * time.Minute

// unhandled is what was counted in a partition of events.
type unhandled struct {
	Stream, Partition   int32
	Floor, Upto, Events int64
}

// countUnhandled counts events of a place, above those that were counted before.
func countUnhandled(ctx context.Context, tx pgx.Tx, place string, before []unhandled) ([]unhandled, error) {
	streams := []int32{}
	partitions := []int32{}
	floors := []int64{}
	upto := []int64{}
	for _, u := range before {
		streams = append(
			streams,
			u.Stream,
		)
		partitions = append(partitions, u.Partition)
		floors = append(floors, u.Floor)
		upto = append(upto, u.Upto)
	}
	return reports.Collect[unhandled](ctx, tx, unhandledSQL, place, streams, partitions, floors, upto)
}

// lockPlaceSQL waits for the transactions that keep a place in this database, and for other
// decisions about it. In: place.
const lockPlaceSQL = `select pg_advisory_xact_lock(` + names.PlaceLocks + `, hashtext($1))`

// leavePlaceSQL changes a place's state to leaving, or to left. In: place, whether nothing remains,
// where it goes. One row: the state.
const leavePlaceSQL = `select onlyonce.leave_place($1, $2, $3)`

// readPlace reads one place; nil if the database does not know it.
func readPlace(ctx context.Context, tx pgx.Tx, place string) (*reports.Place, error) {
	places, _, err := reports.Places(ctx, tx, reports.PlaceFilter{Place: place, Limit: 1})
	if err != nil || len(places) == 0 {
		return nil, err
	}
	return &places[0], nil
}

// LeavePlaceInput is the input of [LeavePlace].
type LeavePlaceInput struct {
	// Place is the tenant, the endpoint or the other place that moves. Required.
	Place string

	// To names the destination database. AdoptPlace must use the same name. Required.
	To string

	// Shown is the result of a dry run that a person agreed to. If the state has changed since, the
	// error is of kind ErrChanged.
	Shown *LeftPlace
}

// LeftPlace is the result of [LeavePlace].
type LeftPlace struct {
	Audited

	Place  string `json:"place"`
	To     string `json:"to"`
	Before string `json:"before"` // the state
	After  string `json:"after"`  // leaving or left

	// Unfinished work of the place; the place has left if all are 0.
	Operations int64 `json:"operations"`
	Events     int64 `json:"events"` // not handled
	Parked     int64 `json:"parked"` // events that are not settled
}

// LeavePlace takes a place out of a database, so that another one can adopt it. From then on the
// database does not accept new work of the place: requests get 503, and so do the senders of
// webhooks. If operations or unhandled events remain, the state is leaving, and consumers continue
// with them: call LeavePlace again. Otherwise the state is left, and the place's rows in this
// database no longer change. Requests in lease mode are cut off as by a crash.
//
// It waits for the place's open transactions. Errors are of kind ErrNotFound if the place does not
// live here, ErrNothing if it has left, ErrRefused if it is leaving for another database, and
// ErrChanged (N2).
func LeavePlace(ctx context.Context, db DB, by By, in LeavePlaceInput) (*LeftPlace, error) {
	k := kind{action: "place leave", subject: "the place", look: "onlyonce place list", within: leaveTimeout}
	return decide(ctx, db, k, by, &leaving{LeavePlaceInput: in}, in.Shown)
}

type leaving struct {
	LeavePlaceInput

	before []unhandled // counted ahead of the lock
}

func (q *leaving) check() error {
	if err := checkText("the place", q.Place); err != nil {
		return err
	}
	return checkText("the database that it goes to", q.To)
}

// lock counts first: under the lock the tenant's requests wait, and only newer events are counted.
func (q *leaving) lock(ctx context.Context, tx pgx.Tx) (err error) {
	if q.before, err = countUnhandled(ctx, tx, q.Place, nil); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, lockPlaceSQL, q.Place)
	return err
}

func (q *leaving) read(ctx context.Context, tx pgx.Tx) (*LeftPlace, error) {
	at, err := readPlace(ctx, tx, q.Place)
	switch {
	case err != nil:
		return nil, err
	case at == nil || at.State == "claimed":
		return nil, failf(ErrNotFound, "%q does not live in this database", q.Place)
	case at.State == "left" && at.Other == q.To:
		return nil, failf(ErrNothing, "%q has left this database for %s already: nothing was changed.",
			q.Place, at.Other)
	case at.State != "here" && at.Other != q.To:
		return nil, failf(ErrRefused, "%q is %s, for %s, and nothing was done", q.Place, at.State, at.Other)
	}
	d := &LeftPlace{Place: q.Place, To: q.To, Before: at.State, After: "leaving"}
	if err := tx.QueryRow(ctx, remainingSQL, q.Place).Scan(&d.Operations, &d.Parked); err != nil {
		return nil, err
	}
	newer, err := countUnhandled(ctx, tx, q.Place, q.before)
	if err != nil {
		return nil, err
	}
	for _, u := range slices.Concat(q.before, newer) {
		d.Events += u.Events
	}
	if d.Operations+d.Events+d.Parked == 0 {
		d.After = "left"
	}
	return d, nil
}

func (q *leaving) differs(shown, now *LeftPlace) bool { return shown.Before != now.Before }

func (q *leaving) do(ctx context.Context, tx pgx.Tx, _ By, now *LeftPlace) (*LeftPlace, error) {
	return now, tx.QueryRow(ctx, leavePlaceSQL, q.Place, now.After == "left", q.To).Scan(&now.After)
}
