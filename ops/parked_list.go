package ops

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
)

// errorShown is how many characters of an error a list returns: it may be a whole stack.
const errorShown = 1000

// parkedColumns and parkedFilter are what lists of parked rows have in common. In: scope, kind,
// state (each may be null: any), how many rows, sink, name, key, topic, partition, offset, reason,
// what the error begins with (null: any). Bodies and headers are not read; errors are cut, they may
// be stacks.
const (
	parkedColumns = `
select id, kind, state, reason, tenant, scope, topic, partition, "offset", sink, call_name as name,
       attempts, left(error, 4000) as error, parked_at, settled_at, next_attempt_at
  from onlyonce.parked
 where `
	parkedFilter = `($1::text is null or scope = $1) and ($2::text is null or kind = $2) and ($3::text is null or state = $3)
   and ($5::text is null or sink = $5) and ($6::text is null or call_name = $6)
   and ($7::uuid is null or key = $7 or first_key = $7) and ($8::text is null or topic = $8) and ($9::integer is null or partition = $9) and ($10::bigint is null or "offset" = $10)
   and ($11::text is null or reason = $11) and ($12::text is null or starts_with(error, $12))`
)

// parkedSQL lists parked rows, newest first. In: see parkedFilter, and below which id (null: from
// the newest). Walks the primary key backwards until it has that many; with a key, by the indexes
// parked_key and parked_first_key.
const parkedSQL = parkedColumns + parkedFilter + ` and ($13::bigint is null or id < $13)
 order by id desc limit $4`

// openParkedSQL lists the parked rows that are not settled, oldest first. In: see parkedFilter, and
// above which id (null: from the oldest). Walks the index parked_open until it has that many.
const openParkedSQL = parkedColumns + `settled_at is null and ` + parkedFilter + ` and ($13::bigint is null or id > $13)
 order by id limit $4`

// ParkedItem is a message, call or event that was set aside. A nil pointer means: not known, or
// none.
type ParkedItem struct {
	ID     int64  `json:"id" col:"ID"`
	Kind   string `json:"kind" col:"KIND" doc:"message, call or event"`
	State  string `json:"state" col:"STATE" doc:"waiting, retrying, blocked, reconcile, resolved or discarded"`
	Reason string `json:"reason" col:"REASON"`
	Tenant string `json:"tenant"`
	Scope  string `json:"scope" col:"SCOPE"`

	// Topic, Partition and Offset are a message's or an event's.
	Topic     *string `json:"topic" col:"ORIGIN" by:"Origin"`
	Partition *int32  `json:"partition"`
	Offset    *int64  `json:"offset"`
	// Sink and Name are a call's.
	Sink *string `json:"sink"`
	Name *string `json:"name"`

	Attempts  int32      `json:"attempts" col:"ATTEMPTS"`
	Error     string     `json:"error" col:"ERROR" by:"ErrorLine" doc:"its first line, at most 1,000 characters"`
	ParkedAt  time.Time  `json:"parked_at" col:"AGE,ago"`
	SettledAt *time.Time `json:"settled_at" doc:"when it was resolved or discarded"`

	NextAttemptAt *time.Time `json:"next_attempt_at" doc:"in state retrying: when it is due; nil: it waits for a rate"`
}

// Origin is the row's origin: a position in Kafka, or a call.
func (r *ParkedItem) Origin() string { return originOf(r.Topic, r.Partition, r.Offset, r.Sink, r.Name) }

// ErrorLine is the beginning of the error, for a table.
func (r *ParkedItem) ErrorLine() string { return show.FirstLine(r.Error, 60) }

// ParkedListFilter picks parked rows. The zero value picks the newest 100.
type ParkedListFilter struct {
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
func (f *ParkedListFilter) args(limit int) []any {
	return []any{reports.OrNull(f.Scope), reports.OrNull(f.Kind), reports.OrNull(f.State), limit, reports.OrNull(f.Sink), reports.OrNull(f.Name),
		reports.OrNull(f.Key), reports.OrNull(f.Topic), f.Partition, f.Offset, reports.OrNull(f.Reason), reports.OrNull(f.ErrorPrefix)}
}

// Parked returns the parked rows that the filter picks, and whether there are more: newest first,
// or with Unsettled oldest first. It reads rows of onlyonce.parked in that order until it has found
// Limit+1, without bodies and headers, and settled ones only without Unsettled: if few rows match,
// it reads all of them. By a Key it reads only the rows of that key.
func Parked(ctx context.Context, db DB, f ParkedListFilter) (rows []ParkedItem, more bool, err error) {
	err = reports.Snapshot(ctx, db, func(tx pgx.Tx) error {
		rows, more, err = readParked(ctx, tx, f)
		return err
	})
	return rows, more, err
}

func readParked(ctx context.Context, tx pgx.Tx, f ParkedListFilter) (rows []ParkedItem, more bool, err error) {
	sql, from := parkedSQL, f.Before
	if f.Unsettled {
		sql, from = openParkedSQL, f.After
	}
	rows, err = reports.Collect[ParkedItem](ctx, tx, sql, append(f.args(reports.LimitOf(f.Limit)), reports.OrNull(from))...)
	if err != nil {
		return nil, false, err
	}
	rows, more = reports.Cut(rows, f.Limit)
	for i := range rows {
		r := &rows[i]
		r.Error = show.FirstLine(r.Error, errorShown)
	}
	return rows, more, nil
}
