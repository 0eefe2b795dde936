package reports

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// mostUnsent is up to how many calls of a sink and a state are counted.
const mostUnsent = 100_000

// unsentSQL counts, for each sink, the calls that were set aside from the log and are not delivered
// yet: those that a relay tries again, and those behind them. In: sink (null: any), up to how many
// of a state are counted. Out: how many, the age of the oldest, and its last error. By the index
// parked_unsent: it reads no row but the oldest. A scheduled call counts once its time has come, by
// parked_calls_due.
const unsentSQL = `
select k.name as sink,
       s.state,
       n.calls,
       extract(epoch from clock_timestamp() - o.record_time)::float8 as age,
       o.error as last_error
  from onlyonce.sinks k
 cross join (values ('retrying'), ('blocked')) s(state)
 cross join lateral (
   select count(*) as calls from (
     select from onlyonce.parked p
      where p.kind = 'call'
        and p.state in ('retrying', 'blocked')
        and p.reason not in ('completion', 'scheduled')
        and p.sink is not null
        and p.sink = k.name and p.state = s.state limit $2) c) n
 cross join lateral (
   select p.record_time, case when p.error = '' then null else left(p.error, 300) end as error from onlyonce.parked p
    where p.kind = 'call'
      and p.state in ('retrying', 'blocked')
      and p.reason not in ('completion', 'scheduled')
      and p.sink is not null
      and p.sink = k.name and p.state = s.state
    order by p.record_time limit 1) o
 where ($1::text is null or k.name = $1)
union all
select k.name,
       'scheduled',
       sum(n.calls)::bigint,
       max(n.age),
       null
  from onlyonce.sinks k cross join generate_series(0, 15) l(lane)
 cross join lateral (
   select count(*) as calls, extract(epoch from clock_timestamp() - min(c.next_attempt_at))::float8 as age from (
     select p.next_attempt_at from onlyonce.parked p
      where p.kind = 'call'
        and p.next_attempt_at is not null
        and p.sink is not null
        and p.sink = k.name
        and p.lane = l.lane
        and case when p.state = 'reconcile' then 2 when p.reason = 'scheduled' then 1 else 0 end = 1
        and p.next_attempt_at < clock_timestamp()
      order by p.next_attempt_at limit $2) c) n
 where ($1::text is null or k.name = $1) and n.calls > 0
 group by k.name
 order by 1, 2`

// UnsentCalls are calls of a sink in one state that were set aside from the log and are not
// delivered.
type UnsentCalls struct {
	Sink      string   `json:"sink"`
	State     string   `json:"state" doc:"retrying, blocked or scheduled (and its time has come)"`
	Calls     int64    `json:"calls" doc:"at most 100,000"`
	Age       *float64 `json:"age_seconds" doc:"since the oldest was enqueued"`
	LastError *string  `json:"last_error" doc:"of the oldest; nil: it has none"`
}

// Unsent counts the calls that are not delivered and not in the log any more, by sink; nil: that
// took longer than limit.
func Unsent(ctx context.Context, tx pgx.Tx, limit time.Duration, sink *string) ([]UnsentCalls, error) {
	return CollectWithin[UnsentCalls](ctx, tx, limit, unsentSQL, sink, mostUnsent)
}

// PendingCalls counts a sink's calls that are not delivered and wait for no operator, wherever they
// are.
type PendingCalls struct {
	Sink  string `json:"sink"`
	Count int64  `json:"count" doc:"all of them: the sum of the following"`
	Log   int64  `json:"log" doc:"in the log: not tried yet, or under way"`
	// under way for longer, tried again, or held by a rate; at most 100,000
	Retrying         int64    `json:"retrying" doc:"above"`
	Blocked          int64    `json:"blocked" doc:"behind an earlier one of their ordering key; at most 100,000"`
	OldestAgeSeconds *float64 `json:"oldest_age_seconds" doc:"since the oldest of all was enqueued"`
	LastError        *string  `json:"last_error" doc:"of the oldest that was tried; nil: none was, or none failed"`
}

// SumCalls adds up, for each sink, the calls that wait in its lanes and those that were set aside.
func SumCalls(waiting []WaitingCalls, unsent []UnsentCalls) []PendingCalls {
	sums := []PendingCalls{}
	of := func(sink string) *PendingCalls {
		i := slices.IndexFunc(sums, func(o PendingCalls) bool { return o.Sink == sink })
		if i < 0 {
			i = len(sums)
			sums = append(sums, PendingCalls{Sink: sink})
		}
		return &sums[i]
	}
	for _, w := range waiting {
		o := of(w.Sink)
		o.Log += w.Calls
		o.add(w.Calls, w.Age)
	}
	for _, u := range unsent {
		o := of(u.Sink)
		if u.State == "blocked" {
			o.Blocked += u.Calls
		} else {
			o.Retrying += u.Calls
		}
		if u.State == "retrying" {
			o.LastError = u.LastError
		}
		o.add(u.Calls, u.Age)
	}
	slices.SortFunc(sums, func(a, b PendingCalls) int { return strings.Compare(a.Sink, b.Sink) })
	return sums
}

// add counts calls, the oldest of which has an age.
func (o *PendingCalls) add(calls int64, age *float64) {
	o.Count += calls
	if age != nil && (o.OldestAgeSeconds == nil || *age > *o.OldestAgeSeconds) {
		o.OldestAgeSeconds = age
	}
}
