package ops

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/migrations"
)

// relaysSQL lists the relays that send the calls of each sink, by the database's clock. One row for
// a sink's lanes together.
const relaysSQL = `
select l.sink, max(e.epoch) as epoch, max(e.until) as until,
       bool_or((e.nonce is not null and e.until > clock_timestamp() and e.until <= clock_timestamp() + interval '1 hour') is true) as held, count(*) as lanes,
       count(*) filter (where e.nonce is not null and e.until > clock_timestamp() and e.until <= clock_timestamp() + interval '1 hour') as lanes_held,
       k.paused_at, k.paused_by, k.pause_reason
  from onlyonce.lanes l join onlyonce.leases e on e.id = l.id left join onlyonce.sinks k on k.name = l.sink
 group by l.sink, k.name order by l.sink`

// membersSQL lists the leases by which relays say that they list a sink: member/SINK/N, for as long
// as they renew them.
const membersSQL = `
select name from onlyonce.leases
 where starts_with(name, 'member/') and until > clock_timestamp() and until <= clock_timestamp() + interval '1 hour'`

// openRequestsSQL counts the HTTP requests that wait for an operator. One row. Reads the requests
// that are not completed, by the index http_records_expired.
const openRequestsSQL = `
select count(*) filter (where r.state = 'reconcile') as reconcile,
       count(*) filter (where r.state = 'running' and r.abandoned_at is not null
                          and not coalesce(l.until > clock_timestamp() and l.until <= clock_timestamp() + interval '1 hour', false)) as abandoned
  from onlyonce.http_records r left join onlyonce.leases l on l.id = r.lease_id where r.expires_at is null`

// PendingCalls counts a sink's calls that wait to be sent.
type PendingCalls struct {
	Sink             string   `json:"sink"`
	Count            int64    `json:"count"`
	OldestAgeSeconds *float64 `json:"oldest_age_seconds"`
}

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

// recoverySQL reports whether the server is a standby, and whether it is set to read-only for more
// than this login or session.
const recoverySQL = `
select pg_is_in_recovery(), coalesce((select setting = 'on' and source not in ('user', 'database user', 'client', 'session')
                                        from pg_settings where name = 'default_transaction_read_only'), false)`

// StatusReport is the result of [Status]: the needs for a person, and the progress of the work.
type StatusReport struct {
	Needs         []Need `json:"needs" doc:"what goes on only when a person does something, halts first"`
	SchemaVersion int    `json:"schema_version"`
	Standby       bool   `json:"standby" doc:"the server is a standby: what it shows may be late"`

	Faults  []Fault      `json:"faults" doc:"what keeps processes from their work now, by scope"`
	Cursors []Cursor     `json:"cursors" doc:"by scope, topic and partition"`
	Owners  []Owner      `json:"owners" doc:"consumer processes, by scope"`
	Parked  ParkedTotals `json:"parked"`
	// Outbox counts pending calls by sink. It is empty if OutboxCounted is false: counting took
	// longer than CountLimit.
	Outbox        []PendingCalls `json:"outbox"`
	OutboxCounted bool           `json:"outbox_counted"`
	Relays        []SinkRelays   `json:"relays" doc:"by sink"`

	// Requests counts the HTTP requests that wait for an operator, by their state (see [Request]).
	Requests struct {
		Reconcile int64 `json:"reconcile"`
		Abandoned int64 `json:"abandoned"`
	} `json:"requests"`
}

// StatusQuestion is the input of [Status].
type StatusQuestion struct {
	CountLimit time.Duration // for how long each count may take; 0: 5 s
}

// Status returns the progress of the work, on one snapshot: positions, parked rows, pending calls,
// and running processes. It does not query Kafka; the owners have reported the lag, at most 10
// seconds ago.
//
// It reads one row for each cursor, lane, relay, process and open HTTP request; and, for at most
// CountLimit each, the index entries of pending calls, and the rows that [ParkedCounts] reads.
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
	parked, err := readParkedCounts(ctx, tx, ParkedQuestion{CountLimit: limit})
	if err != nil {
		return nil, err
	}
	r.Parked = *parked
	if r.Relays, err = readRelays(ctx, tx); err != nil {
		return nil, err
	}
	waiting, err := reports.CollectWithin[reports.WaitingCalls](ctx, tx, limit, reports.WaitingCallsSQL, nil)
	if err != nil {
		return nil, err
	}
	r.OutboxCounted = waiting != nil
	r.countCalls(waiting)
	if err := tx.QueryRow(ctx, openRequestsSQL).Scan(&r.Requests.Reconcile, &r.Requests.Abandoned); err != nil {
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
	if r.Cursors, err = readCursors(ctx, tx, reports.CursorFilter{}); err != nil {
		return err
	}
	if r.Owners, err = readOwners(ctx, tx); err != nil {
		return err
	}
	r.Faults = r.findFaults(readOnly)
	return nil
}

func readRelays(ctx context.Context, tx pgx.Tx) ([]SinkRelays, error) {
	relays, err := reports.Collect[SinkRelays](ctx, tx, relaysSQL)
	if err != nil {
		return nil, err
	}
	type member struct{ Name string }
	members, err := reports.Collect[member](ctx, tx, membersSQL)
	if err != nil {
		return nil, err
	}
	for i := range relays {
		l := &relays[i]
		for _, m := range members {
			if strings.HasPrefix(m.Name, "member/"+url.PathEscape(l.Sink)+"/") {
				l.Members++
			}
		}
	}
	return relays, nil
}

// countCalls adds up, for each sink, the calls that wait in its lanes.
func (r *StatusReport) countCalls(waiting []reports.WaitingCalls) {
	r.Outbox = []PendingCalls{}
	for _, w := range waiting {
		i := slices.IndexFunc(r.Outbox, func(o PendingCalls) bool { return o.Sink == w.Sink })
		if i < 0 {
			i = len(r.Outbox)
			r.Outbox = append(r.Outbox, PendingCalls{Sink: w.Sink})
		}
		o := &r.Outbox[i]
		o.Count += w.Calls
		if o.OldestAgeSeconds == nil || w.Age != nil && *w.Age > *o.OldestAgeSeconds {
			o.OldestAgeSeconds = w.Age
		}
	}
	slices.SortFunc(r.Outbox, func(a, b PendingCalls) int { return strings.Compare(a.Sink, b.Sink) })
}
