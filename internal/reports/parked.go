package reports

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/show"
)

// ParkedColumns are the fields of a parked row from onlyonce.parked p, but for its error. The first
// unsettled row of its ordering key is found by the partial index parked_order. ParkedRow is the
// row with its error cut, because that may be a stack. Bodies and headers are not read.
const (
	ParkedColumns = `p.id,
                     p.kind,
                     p.state,
                     p.reason,
                     p.tenant,
                     p.scope,
                     p.topic,
                     p.partition,
                     p."offset",
                     p.sink,
                     p.call_name as name,
                     p.key::text as key,
                     p.order_key::text as order_key,
                     p.attempts,
                     ` + parked.CallOpen + ` as may_be_applied,
                     p.redrives,
                     p.redriven_at,
                     p.parked_at,
                     p.settled_at,
                     p.next_attempt_at,
                     (select f.id from onlyonce.parked f
                       where f.order_key = p.order_key
                         and f.settled_at is null
                         and (f.partition, f."offset") < (p.partition, p."offset")
                       order by f.partition, f."offset" limit 1) as head`
	ParkedRow = `
select ` + ParkedColumns + `, case when length(l.line) > 1000 then left(l.line, 999) || '…' else l.line end as error
  from onlyonce.parked p
 cross join lateral (select btrim(split_part(btrim(left(p.error, 4000), E' \t\r\n'), E'\n', 1), E' \t\r') as line) l
 where `
)

// parkedFilter is what lists of parked rows have in common. In: scope, kind, state (each may be
// null: any), how many rows, sink, name, key, topic, partition, offset, reason, what the error
// begins with (null: any).
const (
	parkedFilter = `($1::text is null or scope = $1)
   and ($2::text is null or kind = $2)
   and ($3::text is null or state = $3)
   and ($5::text is null or sink = $5)
   and ($6::text is null or call_name = $6)
   and ($7::uuid is null or key = $7 or first_key = $7)
   and ($8::text is null or topic = $8)
   and ($9::integer is null or partition = $9)
   and ($10::bigint is null or "offset" = $10)
   and ($11::text is null or reason = $11)
   and ($12::text is null or starts_with(error, $12))`
)

// parkedSQL lists parked rows, newest first. In: see parkedFilter, below which id (null: from the
// newest), and whether captured calls are listed too. Walks the primary key backwards until it has
// that many; with a key, by the indexes parked_key and parked_first_key.
const parkedSQL = ParkedRow + parkedFilter + ` and ($13::bigint is null or id < $13) and ($14::boolean or not ` +
	parked.CapturedCall + `)
 order by id desc limit $4`

// openParkedSQL lists the parked rows that are not settled, oldest first. In: see parkedFilter, and
// above which id (null: from the oldest). Walks the index parked_open until it has that many.
const openParkedSQL = ParkedRow + `settled_at is null and ` + parkedFilter + ` and id > coalesce($13::bigint, 0)
 order by id limit $4`

// parkedByIDsSQL reads parked rows. In: ids. By the primary key.
const parkedByIDsSQL = ParkedRow + `p.id = any ($1::bigint[]) order by id`

// ParkedByIDs returns parked rows as rows of type T, without bodies and headers.
func ParkedByIDs[T any](ctx context.Context, tx pgx.Tx, ids []int64) ([]T, error) {
	return Collect[T](ctx, tx, parkedByIDsSQL, ids)
}

// ParkedFilter picks parked rows. The zero value picks the newest 100.
type ParkedFilter struct {
	Scope       string // empty: any; this holds for each text below
	Kind        string
	State       string
	Reason      string
	ErrorPrefix string // the beginning of the error
	Sink, Name  string // of calls
	Topic       string // of messages and events
	Partition   *int32 // nil: any
	Offset      *int64 // nil: any
	Key         string // as stored, a UUID
	Unsettled   bool   // only rows that are not settled, oldest first
	Before      int64  // only rows with a lower id: the next page; 0: from the newest
	After       int64  // with Unsettled: only rows with a higher id: the next page; 0: from the oldest
	Limit       int    // how many rows at most, up to 10,000; 0: 100
}

// args are the parameters of parkedFilter.
func (f *ParkedFilter) args(limit int) []any {
	return []any{OrNull(f.Scope), OrNull(f.Kind), OrNull(f.State), limit, OrNull(f.Sink), OrNull(f.Name),
		OrNull(f.Key), OrNull(f.Topic), f.Partition, f.Offset, OrNull(f.Reason), OrNull(f.ErrorPrefix)}
}

// captured reports whether calls are picked too that were delivered with a captured answer: by
// their reason, by a key, and by the place of one row.
func (f *ParkedFilter) captured() bool {
	return f.Reason == parked.Completion || f.Key != "" || f.Offset != nil
}

// Parked returns the parked rows that the filter picks, as rows of type T, and whether there are
// more: newest first, or with Unsettled oldest first. It reads rows of onlyonce.parked in that
// order until it has found Limit+1, without bodies and headers, and settled ones only without
// Unsettled: if few rows match, it reads all of them. By a Key it reads only the rows of that key.
func Parked[T any](ctx context.Context, tx pgx.Tx, f ParkedFilter) (rows []T, more bool, err error) {
	sql := parkedSQL
	from := f.Before
	if f.Unsettled {
		sql = openParkedSQL
		from = f.After
	}
	args := append(f.args(LimitOf(f.Limit)), OrNull(from))
	if !f.Unsettled {
		args = append(args, f.captured())
	}
	rows, err = Collect[T](ctx, tx, sql, args...)
	rows, more = Cut(rows, f.Limit)
	return rows, more, err
}

const (
	// mostGroups is how many groups of parked rows are returned at most.
	mostGroups = 1000
	// mostSettled is up to how many settled rows are counted.
	mostSettled = 1000
)

// parkedCountsSQL counts the parked rows that are not settled. In: see parkedFilter, where the
// limit is of groups (null: all), and whether to group by the first 80 characters of the error too.
// The largest group comes first. open: calls that the remote may have applied; tried: how long ago
// the first attempt of those was. By the index parked_open, or parked_position if a scope is given;
// without bodies.
const parkedCountsSQL = `
select kind,
       scope,
       sink,
       reason,
       state,
       error,
       count(*) as count,
       min(parked_at) as oldest,
       extract(epoch from clock_timestamp() - min(parked_at))::float8 as oldest_age_seconds,
       count(*) filter (where open) as open,
       extract(epoch from clock_timestamp() - min(first_attempt_at) filter (where open))::float8 as tried
  from (select kind,
               scope,
               sink,
               reason,
               state,
               parked_at,
               first_attempt_at,
               ` + parked.CallOpen + ` as open,
               case when $13::boolean then left(split_part(error, E'\n', 1), 80) else '' end as error
          from onlyonce.parked p where id > 0 and settled_at is null and ` + parkedFilter + `) p
 group by kind, scope, sink, reason, state, error
 order by count(*) desc, kind, scope, sink, reason, state, error limit $4`

// settledCountSQL counts settled rows that were in trouble, up to a number. In: see parkedFilter,
// where the limit is that number. Reads rows without their bodies until it has found so many, by
// the index parked_troubled.
const settledCountSQL = `
select count(*) as count from (
  select from onlyonce.parked
   where id > 0 and settled_at is not null and not ` + parked.CapturedCall + ` and ` + parkedFilter + ` limit $4) p`

// capturedCountSQL counts the calls that were delivered with a captured answer, up to a number. In:
// as settledCountSQL. By the index parked_captured.
const capturedCountSQL = `
select count(*) as count from (
  select from onlyonce.parked
   where id > 0 and settled_at is not null and ` + parked.CapturedCall + ` and ` + parkedFilter + ` limit $4) p`

// ParkedCount counts the parked rows of one group.
type ParkedCount struct {
	Count            int64     `json:"count"`
	Kind             string    `json:"kind" doc:"message, call or event"`
	State            string    `json:"state" doc:"waiting, retrying, blocked or reconcile"`
	Reason           string    `json:"reason"`
	Scope            string    `json:"scope"`
	Sink             *string   `json:"sink" doc:"of calls"`
	Error            string    `json:"error,omitempty" doc:"beginning of the errors, if rows are counted by it"`
	Oldest           time.Time `json:"oldest" doc:"when the oldest of them was parked"`
	OldestAgeSeconds float64   `json:"oldest_age_seconds" doc:"how long ago that was, by the database's clock"`
}

// NeedsOperator reports whether the rows wait for an operator's decision.
func (c *ParkedCount) NeedsOperator() bool { return c.State == "waiting" || c.State == "reconcile" }

// MayRetry reports whether a retry may help once the cause is repaired, without a look at each row.
func (c *ParkedCount) MayRetry() bool {
	return c.State == "waiting" &&
		(c.Reason == "permanent" || c.Reason == "exhausted" || c.Reason == "crashed" || c.Reason == "rejected")
}

// Pick are the flags of a decision about the rows that wait for one.
func (c *ParkedCount) Pick() string {
	pick := "-kind " + c.Kind + " -scope " + show.Quote(c.Scope)
	if c.Sink != nil {
		pick = "-kind " + c.Kind + " -sink " + show.Quote(*c.Sink) + " -state " + c.State
	}
	return pick + " -parked-for " + c.Reason + " -reason WHY"
}

// At is the sink of calls, or the scope.
func (c *ParkedCount) At() string {
	if c.Sink != nil {
		return *c.Sink
	}
	return c.Scope
}

// ParkedTotals counts parked rows by kind, scope, sink, reason and state, and the settled ones
// together.
type ParkedTotals struct {
	// the rows that are not settled, the largest group first, at most 1,000
	Groups      []ParkedCount `json:"groups" doc:"above"`
	Counted     bool          `json:"counted" doc:"false if counting took over 5 s: groups is then empty"`
	Settled     *int64        `json:"settled" doc:"how many rows are settled, up to 1,000. nil: that took over 5 s"`
	SettledMore bool          `json:"settled_more" doc:"there are more than settled"`

	// how many calls were delivered with a captured answer, up to 1,000; they were never in
	// trouble. nil: that took over 5 s
	Captured     *int64 `json:"captured" doc:"above"`
	CapturedMore bool   `json:"captured_more" doc:"there are more than captured"`
}

// ParkedGroup is a group with what the counts of calls need.
type ParkedGroup struct {
	ParkedCount

	Open  int64    // how many of the calls the remote may have applied
	Tried *float64 // how many seconds ago the first attempt of all was made
}

// CountCalls counts the parked calls that are not settled, of a sink (empty: any), in all groups.
// It reads each once, by an index and without bodies, for at most limit; nil: that took longer.
func CountCalls(ctx context.Context, tx pgx.Tx, sink string, limit time.Duration) ([]ParkedGroup, error) {
	args := (&ParkedFilter{Kind: "call", Sink: sink}).args(0)
	args[3] = nil
	return CollectWithin[ParkedGroup](ctx, tx, limit, parkedCountsSQL, append(args, false)...)
}

// countParkedCalls adds up those of each sink and state; nil: that took longer than limit.
func countParkedCalls(ctx context.Context, tx pgx.Tx, sink string, limit time.Duration) ([]ParkedCalls, error) {
	groups, err := CountCalls(ctx, tx, sink, limit)
	if err != nil || groups == nil {
		return nil, err
	}
	sums := []ParkedCalls{}
	for i := range groups {
		g := &groups[i]
		if g.Sink == nil {
			continue
		}
		at := slices.IndexFunc(sums, func(p ParkedCalls) bool { return p.Sink == *g.Sink && p.State == g.State })
		if at < 0 {
			at = len(sums)
			sums = append(sums, ParkedCalls{Sink: *g.Sink, State: g.State, Oldest: g.Oldest})
		}
		s := &sums[at]
		s.Count += g.Count
		s.Open += g.Open
		if g.Oldest.Before(s.Oldest) {
			s.Oldest = g.Oldest
		}
	}
	slices.SortFunc(sums, func(a, b ParkedCalls) int {
		return cmp.Or(strings.Compare(a.Sink, b.Sink), strings.Compare(a.State, b.State))
	})
	return sums, nil
}

// Total is how many rows are not settled.
func (t *ParkedTotals) Total() (n int64) {
	for i := range t.Groups {
		n += t.Groups[i].Count
	}
	return n
}

// CountParked counts the rows that the filter picks, but for its Unsettled, Before, After and
// Limit, and for settled rows its State. It reads the rows that are not settled, by an index and
// without bodies, and at most 1,000 settled ones of each kind. Each of the three counts takes at
// most limit.
func CountParked(
	ctx context.Context,
	tx pgx.Tx,
	f ParkedFilter,
	byError bool,
	limit time.Duration,
) (t *ParkedTotals, err error) {
	t = &ParkedTotals{Groups: []ParkedCount{}}
	groups, err := CollectWithin[ParkedGroup](ctx, tx, limit, parkedCountsSQL, append(f.args(mostGroups), byError)...)
	if err != nil {
		return nil, err
	}
	t.Counted = groups != nil
	for i := range groups {
		t.Groups = append(t.Groups, groups[i].ParkedCount)
	}
	f.State = ""
	if t.Settled, t.SettledMore, err = countUpTo(ctx, tx, f, limit, settledCountSQL); err != nil {
		return t, err
	}
	t.Captured, t.CapturedMore, err = countUpTo(ctx, tx, f, limit, capturedCountSQL)
	return t, err
}

// countUpTo counts rows up to mostSettled; nil: that took too long.
func countUpTo(
	ctx context.Context,
	tx pgx.Tx,
	f ParkedFilter,
	limit time.Duration,
	sql string,
) (n *int64, more bool, err error) {
	type counted struct{ Count int64 }
	all, err := CollectWithin[counted](ctx, tx, limit, sql, f.args(mostSettled+1)...)
	if err != nil || all == nil {
		return nil, false, err
	}
	found := min(all[0].Count, mostSettled)
	return &found, all[0].Count > mostSettled, nil
}
