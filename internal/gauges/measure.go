package gauges

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/ops"
)

// windowsSQL reads for each sink how long a call is started again under its key. Sinks that
// remember keys forever are left out.
const windowsSQL = `
select name as sink, extract(epoch from start_window)::float8 as window_seconds, null::float8 as left_seconds
  from onlyonce.sinks where start_window is not null order by name`

// scopeFrontiersSQL finds how far the slowest cursor in use of each scope is in the past. Out:
// scope, age in seconds by the clock (null: a cursor's owner has not said). Reads one row of
// onlyonce.cursors and one of onlyonce.frontiers for each cursor in use.
const scopeFrontiersSQL = `
select c.scope,
       case when bool_and(f.frontier is not null)
              then extract(epoch from clock_timestamp() - min(f.frontier))::float8 end as behind
  from onlyonce.cursors c left join onlyonce.frontiers f on f.cursor_id = c.id and f.run = c.run
 where c.retired_at is null and c.cluster_id is distinct from 'postgres'
 group by c.scope order by c.scope`

// writingSQL reads the database's name, and how old the oldest transaction of the server that has
// written is, prepared ones too. One row. A login without pg_read_all_stats sees only the age of
// its own.
const writingSQL = `
select current_database()::text as database,
       extract(epoch from clock_timestamp() - least(
         (select min(xact_start) from pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid()),
         (select min(prepared) from pg_prepared_xacts)))::float8 as oldest_transaction`

// overdueSQL finds how long ago the retention of the oldest row of each kind has passed, by the
// indexes that rows are deleted by. A row for each kind that is not kept for ever.
const overdueSQL = `
select r.kind as rows, coalesce(greatest(0, extract(epoch from clock_timestamp() - r.keep - case r.kind
         when 'parked'
           then (select min(p.settled_at) from onlyonce.parked p where p.kind <> 'call' and p.settled_at is not null)
         when 'audit' then (select min(a.at) from onlyonce.audit a)
         else (select min(o.changed_at) from onlyonce.webhook_objects o) end)), 0)::float8 as seconds
  from onlyonce.retentions r where r.kind <> 'bodies' and r.keep is not null
 order by r.kind`

// Overdue is a kind of rows that have a retention.
type Overdue struct {
	Rows    string  `json:"rows" doc:"parked, audit or webhook_objects"`
	Seconds float64 `json:"seconds" doc:"how long ago the retention of the oldest one has passed"`
}

// KeyWindow is how long calls of a sink are repeated under their keys.
type KeyWindow struct {
	Sink          string  `json:"sink"`
	WindowSeconds float64 `json:"window_seconds" doc:"from a call's first attempt"`
	// time left for the unanswered call that was tried first. Nil: no call waits for another
	// attempt. Below 0: it is about to be set to reconcile
	LeftSeconds *float64 `json:"left_seconds" doc:"above"`
}

// ScopeFrontier is how far the slowest cursor of a scope is in the past.
type ScopeFrontier struct {
	Scope  string   `json:"scope"`
	Behind *float64 `json:"behind_seconds" doc:"nil: the owner of a cursor has not said"`
}

// RingUse is how much of a ring is in use.
type RingUse struct {
	Ring  string `json:"ring" doc:"a ring of keys, outbox or events"`
	Free  int    `json:"free" doc:"empty segments"`
	Bytes int64  `json:"bytes" doc:"without indexes for keys, with them for the logs"`
}

// Measures is the result of [Measure].
type Measures struct {
	Database string               `json:"database" doc:"its name"`
	Status   *ops.StatusReport    `json:"status"`
	Oldest   []reports.OldestCall `json:"oldest_calls" doc:"by sink"`
	Windows  []KeyWindow          `json:"windows" doc:"by sink; nil: not read within reports.CountLimit"`
	Keys     []reports.KeyRing    `json:"keys"`
	Rings    []RingUse            `json:"rings"`
	Scopes   []ScopeFrontier      `json:"frontiers" doc:"by scope"`
	Overdue  []Overdue            `json:"overdue" doc:"by kind"`
	// the age in seconds of the oldest open transaction of the server that has written. Nil: there
	// is none that the login may see
	OldestTransaction *float64 `json:"oldest_transaction_seconds" doc:"above"`
}

// Measure returns what a monitor records of a database, on one snapshot: [ops.Status],
// [reports.Inbox], and of each sink the oldest call, and how much of its key window the most urgent
// one has left. An exporter can call it every few seconds: each count takes at most limit, and if
// ctx has a deadline, the server ends a statement that is still running then.
func Measure(ctx context.Context, db ops.DB, limit time.Duration) (m *Measures, err error) {
	err = reports.Snapshot(ctx, db, func(tx pgx.Tx) error {
		if deadline, ok := ctx.Deadline(); ok {
			if _, err := tx.Exec(
				ctx,
				reports.LimitSQL,
				guard.Millis(max(time.Until(deadline), time.Millisecond)),
			); err != nil {
				return err
			}
		}
		m, err = readMeasures(ctx, tx, limit)
		return err
	})
	return m, err
}

func readMeasures(ctx context.Context, tx pgx.Tx, limit time.Duration) (*Measures, error) {
	type server struct {
		Database          string
		OldestTransaction *float64
	}
	servers, err := reports.Collect[server](ctx, tx, writingSQL)
	if err != nil {
		return nil, err
	}
	m := &Measures{Database: servers[0].Database, OldestTransaction: servers[0].OldestTransaction}
	if m.Status, err = ops.Status(ctx, reports.Within{Tx: tx}, ops.StatusQuestion{CountLimit: limit}); err != nil {
		return nil, err
	}
	if m.Oldest, err = reports.OldestCalls(ctx, tx); err != nil {
		return nil, err
	}
	if err := m.readWindows(ctx, tx, limit); err != nil {
		return nil, err
	}
	if m.Keys, err = reports.KeyRings(ctx, tx); err != nil {
		return nil, err
	}
	if m.Scopes, err = reports.Collect[ScopeFrontier](ctx, tx, scopeFrontiersSQL); err != nil {
		return nil, err
	}
	if m.Overdue, err = reports.Collect[Overdue](ctx, tx, overdueSQL); err != nil {
		return nil, err
	}
	return m, m.readRings(ctx, tx)
}

// readWindows finds how much of its window the unanswered call that was tried first has left. Calls
// that were never tried have their whole window, and those with the reason completion were
// accepted.
func (m *Measures) readWindows(ctx context.Context, tx pgx.Tx, limit time.Duration) error {
	groups, err := reports.CountCalls(ctx, tx, "", limit)
	if err != nil || groups == nil {
		return err
	}
	if m.Windows, err = reports.Collect[KeyWindow](ctx, tx, windowsSQL); err != nil {
		return err
	}
	for i := range groups {
		g := &groups[i]
		unanswered := g.State == "retrying" || g.State == "blocked"
		tried := g.Tried != nil && g.Sink != nil
		if !unanswered || !tried || g.Reason == "completion" {
			continue
		}
		for j := range m.Windows {
			w := &m.Windows[j]
			if w.Sink == *g.Sink && (w.LeftSeconds == nil || w.WindowSeconds-*g.Tried < *w.LeftSeconds) {
				left := w.WindowSeconds - *g.Tried
				w.LeftSeconds = &left
			}
		}
	}
	return nil
}

// readRings adds up the segments of each ring.
func (m *Measures) readRings(ctx context.Context, tx pgx.Tx) error {
	calls, err := reports.Collect[reports.OutboxSegment](ctx, tx, reports.RingSQL)
	if err != nil {
		return err
	}
	events, err := reports.Collect[reports.EventSegment](ctx, tx, reports.EventRingSQL)
	if err != nil {
		return err
	}
	use := func(ring, state string, bytes int64) {
		if n := len(m.Rings); n == 0 || m.Rings[n-1].Ring != ring {
			m.Rings = append(m.Rings, RingUse{Ring: ring})
		}
		r := &m.Rings[len(m.Rings)-1]
		r.Bytes += bytes
		if state == "free" {
			r.Free++
		}
	}
	for _, k := range m.Keys {
		for _, s := range k.Segments {
			use(k.Ring, s.State, s.Bytes)
		}
	}
	for _, s := range calls {
		use("outbox", s.State, s.Bytes)
	}
	for _, s := range events {
		use("events", s.State, s.Bytes)
	}
	return nil
}
