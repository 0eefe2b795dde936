package ops

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/migrations"
)

// openRequestsSQL counts the HTTP requests that wait for an operator, the oldest thousand. One row.
// By the index http_records_held. One whose client has come back counts until it is completed, or
// its next step begins.
const openRequestsSQL = `
select count(*) filter (where h.state = 'reconcile') as reconcile,
       count(*) filter (where h.state = 'running') as abandoned
  from (select r.state from onlyonce.http_records r
         where r.expires_at is null and (r.state = 'reconcile' or r.abandoned_at is not null)
         order by r.created_at limit 1000) h`

// recoverySQL reports whether the server is a standby, and whether it is set to read-only for more
// than this login or session.
const recoverySQL = `
select pg_is_in_recovery(),
       coalesce((select setting = 'on' and source not in ('user', 'database user', 'client', 'session')
                   from pg_settings where name = 'default_transaction_read_only'), false)`

// StatusReport is the result of [Status]: the needs for a person, and the progress of the work.
type StatusReport struct {
	Needs         []Need `json:"needs" doc:"problems that need a person, halts first"`
	SchemaVersion int    `json:"schema_version"`
	Standby       bool   `json:"standby" doc:"the server is a standby: its data may lag"`

	Faults  []Fault  `json:"faults" doc:"present faults of processes, by scope"`
	Cursors []Cursor `json:"cursors" doc:"by scope, topic and partition"`
	Owners  []Owner  `json:"owners" doc:"consumer processes, by scope"`
	// the relays, receivers, endpoints and HTTP layers of processes, by part and scope
	Parts  []Owner              `json:"parts" doc:"above"`
	Parked reports.ParkedTotals `json:"parked"`
	// Outbox counts by sink the calls that are not delivered, wherever they wait. If OutboxCounted
	// is false, some are left out: counting took longer than CountLimit.
	Outbox        []reports.PendingCalls `json:"outbox"`
	OutboxCounted bool                   `json:"outbox_counted"`
	Relays        []reports.SinkRelays   `json:"relays" doc:"by sink"`
	// calls in lanes that no relay has held for longer than a lease, by sink
	Unheld []reports.UnheldCalls `json:"unheld" doc:"above"`

	// TimedAhead is how many parked rows got a due time while the database's clock was ahead. At
	// most 1,000 are counted.
	TimedAhead int64 `json:"timed_ahead"`

	// Requests counts the HTTP requests that wait for an operator, by their state (see [Request]):
	// the oldest 1,000.
	Requests RequestCounts `json:"requests"`
}

// RequestCounts counts the HTTP requests that wait for a person.
type RequestCounts struct {
	Reconcile int64 `json:"reconcile"`
	Abandoned int64 `json:"abandoned"`
}

// timedAheadSQL counts the parked rows whose due time was written while the clock was ahead. One
// row. By the index parked_timed.
const timedAheadSQL = `
select count(*)
  from (select from onlyonce.parked
         where timed_at > (select clock_timestamp() + interval '1 second') order by timed_at desc limit 1000) a`

// StatusQuestion is the input of [Status].
type StatusQuestion struct {
	CountLimit time.Duration // for how long each count may take; 0: 5 s
}

// Status returns the progress of the work, on one snapshot: positions, parked rows, pending calls,
// and running processes. It does not query Kafka; the owners have reported the lag, at most 10
// seconds ago.
//
// It reads one row for each cursor, lane, relay, process and open HTTP request; and, for at most
// CountLimit each, the index entries of calls that are not delivered, the rows
// that are parked and not settled, and up to 1,000 that are settled.
func Status(ctx context.Context, db DB, q StatusQuestion) (r *StatusReport, err error) {
	return reports.Look(ctx, db, func(tx pgx.Tx) (*StatusReport, error) { return readStatus(ctx, tx, q.CountLimit) })
}

func readStatus(ctx context.Context, tx pgx.Tx, limit time.Duration) (*StatusReport, error) {
	var r StatusReport
	var err error
	if r.SchemaVersion, err = migrations.Version(ctx, tx); err != nil {
		return nil, err
	}
	if err = r.readProcesses(ctx, tx); err != nil {
		return nil, err
	}
	parked, err := reports.CountParked(ctx, tx, reports.ParkedFilter{}, false, limit)
	if err != nil {
		return nil, err
	}
	r.Parked = *parked
	if r.Relays, err = reports.Relays(ctx, tx); err != nil {
		return nil, err
	}
	lanes, err := reports.Collect[reports.OutboxLane](ctx, tx, reports.LanesSQL, nil)
	if err != nil {
		return nil, err
	}
	waiting, err := reports.CollectWithin[reports.WaitingCalls](ctx, tx, limit, reports.WaitingCallsSQL, nil)
	if err != nil {
		return nil, err
	}
	unsent, err := reports.Unsent(ctx, tx, limit, nil)
	if err != nil {
		return nil, err
	}
	r.OutboxCounted = waiting != nil && unsent != nil
	r.Outbox = reports.SumCalls(waiting, unsent)
	r.Unheld = reports.Unheld(lanes, waiting)
	r.countUndelivered()
	secrets, err := secretFaults(ctx, tx)
	if err != nil {
		return nil, err
	}
	r.Faults = append(r.Faults, secrets...)
	if err := tx.QueryRow(ctx, openRequestsSQL).Scan(&r.Requests.Reconcile, &r.Requests.Abandoned); err != nil {
		return nil, err
	}
	if err := tx.QueryRow(ctx, timedAheadSQL).Scan(&r.TimedAhead); err != nil {
		return nil, err
	}
	r.Needs = r.needs()
	return &r, nil
}

// readProcesses reads the cursors and the processes, and what keeps them from their work.
func (r *StatusReport) readProcesses(ctx context.Context, tx pgx.Tx) (err error) {
	readOnly := false
	if err = tx.QueryRow(ctx, recoverySQL).Scan(&r.Standby, &readOnly); err != nil {
		return err
	}
	if r.Cursors, err = reports.Cursors[Cursor](ctx, tx, reports.CursorFilter{}); err != nil {
		return err
	}
	if r.Owners, r.Parts, err = readOwners(ctx, tx); err != nil {
		return err
	}
	r.Faults = r.findFaults(readOnly)
	return nil
}
