package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// storedSQL finds what is stored of a call. In: key. One row for each place: log (id, sink, state of the view onlyonce.calls) and parked (its own id).
// A call that was redriven under a new key is found by either one. By
// the indexes outbox_log_key and parked_row; that on onlyonce.parked (kind, key) holds unsettled rows
// only, so settled ones that no row of the log leads to are looked for in the whole table, which holds failures. By a new key, the log's
// row is found by outbox_log_new within its sink and lane.
const storedSQL = `
with parked as materialized (
  select p.id, p.row_id, p.sink, p.lane, p.state, p.erased_at, octet_length(p.body) + coalesce(octet_length(p.response_body), 0) as bytes
    from onlyonce.parked p
   where p.kind = 'call' and (p.key = $1::uuid or p.row_id in (select r.id from onlyonce.outbox_log r where r.key = $1::uuid))),
log as materialized (
  select r.slot, r.id, r.key from onlyonce.outbox_log r where r.key = $1::uuid
  union
  select r.slot, r.id, r.key from parked p join onlyonce.outbox_log r on r.sink = p.sink and r.lane = p.lane and r.id = p.row_id)
select 'log' as place, c.id, c.key::text as key, c.sink, c.state, c.erased_at, octet_length(r.body)::bigint as bytes
  from log g
  join onlyonce.outbox_log r on r.slot = g.slot and r.key = g.key and r.id = g.id
  join onlyonce.calls c on c.key = g.key and c.id = g.id
union all
select 'parked', p.id, null, coalesce(p.sink, ''), case p.state when 'resolved' then 'delivered' else p.state end, p.erased_at, coalesce(p.bytes, 0) from parked p
order by 1 desc, 2`

// lockStoredSQL locks what settles a call: its lane, whose cursor says what was delivered, and its parked row, which is what is redriven. In: key. A
// relay that moves the cursor, and an operator who redrives, wait.
const (
	lockStoredSQL = `
select p.id from onlyonce.parked p
 where p.kind = 'call' and (p.key = $1::uuid or p.row_id in (select r.id from onlyonce.outbox_log r where r.key = $1::uuid)) order by p.id for update`
	lockStoredLaneSQL = `
select l.id from onlyonce.lanes l where (l.sink, l.lane) in (select r.sink, r.lane from onlyonce.outbox_log r where r.key = $1::uuid) order by l.id for update`
)

// eraseLogSQL and eraseParkedSQL erase bodies. In: ids; of the log also keys, by whose index it finds them. The row of
// the log keeps its xid: it was delivered, and stays so.
const (
	eraseLogSQL = `
update onlyonce.outbox_log set body = '', erased_at = clock_timestamp() where id = any ($1::bigint[]) and key = any ($2::uuid[]) and erased_at is null`
	eraseParkedSQL = `
update onlyonce.parked set body = '', response_body = null, response_headers = null, erased_at = clock_timestamp()
 where id = any ($1::bigint[]) and kind = 'call' and erased_at is null and state in ('resolved', 'discarded')`
)

// erasure is what the operator asks for.
type erasure struct {
	consent
	key *string
}

type storedRow struct {
	Place    string     `json:"place"` // log or parked
	ID       int64      `json:"id"`
	Key      *string    `json:"key"` // of the log
	Sink     string     `json:"sink"`
	State    string     `json:"state"`
	ErasedAt *time.Time `json:"erased_at"` // before
	Bytes    int64      `json:"bytes"`
}

// erased is what came of it, and the detail of its audit row.
type erased struct {
	Key  string      `json:"key"`
	Rows []storedRow `json:"rows"`
}

func outboxEraseCommand() command {
	return command{
		name:    "outbox erase",
		args:    "[-postgres URL] -key KEY -reason WHY [-yes]",
		summary: "erase the body of a call that is settled",
		help: `
Erases the body of a call, in the log and where it was parked, and what the remote answered: for a person who asks to be forgotten. The
call must be delivered or discarded; what is still to be sent needs its body ("onlyonce parked discard" gives it up). The row stays, with
target, headers and the rest, until its segment of the log is dropped, so that the call is recognised when it is enqueued again. What
was erased cannot be redriven. Backups, and standbys that lag, hold the body longer.

KEY is the idempotency key, a UUID, as the remote saw it. It asks first, unless -yes is given, and writes an audit row. What is erased
already stays so: status 0, nothing is written.

Example:
  onlyonce outbox erase -key 6a1f0b52-93c1-8d0e-a3b4-0f1e2d3c4b5a -reason "GDPR request 118"`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			ask := &erasure{}
			textVar(fs, &ask.key, "key", "the call's idempotency key, `KEY`")
			ask.consent.flags(fs)
			return func(ctx context.Context, a *app) error { return a.erase(ctx, *address, ask) }
		},
	}
}

func (a *app) erase(ctx context.Context, address string, ask *erasure) error {
	if err := missing(given{"-key", ask.key != nil}, given{"-reason", ask.reason != nil}); err != nil {
		return err
	}
	key, err := uuid.Parse(*ask.key)
	if err != nil {
		return usagef("-key: %q is no UUID", *ask.key)
	}
	*ask.key = key.String()
	k := changeKind{action: "outbox erase", subject: "the call", waiting: "waiting for a relay to settle calls", look: "onlyonce outbox erase"}
	return change(ctx, a, address, k, ask.consent, ask, func(_ context.Context, _ *database, _ *erased, audit int64) error {
		_, _ = fmt.Fprintf(a.out, "Done: erased; audit row %d.\n", audit)
		return nil
	})
}

func (q *erasure) lock(ctx context.Context, tx pgx.Tx) error {
	// The lane first, as a relay does, which settles calls under it.
	for _, sql := range []string{lockStoredLaneSQL, lockStoredSQL} {
		if _, err := tx.Exec(ctx, sql, q.key); err != nil {
			return err
		}
	}
	return nil
}

func (q *erasure) read(ctx context.Context, tx pgx.Tx) (*erased, error) {
	rows, err := collect[storedRow](ctx, tx, storedSQL, q.key)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, usagef("-key: no call with key %s is stored: it was dropped with its segment of the log, or never enqueued", *q.key)
	}
	done := true
	for i := range rows {
		r := &rows[i]
		utc(r.ErasedAt)
		done = done && r.ErasedAt != nil
		switch r.State {
		case "delivered", "discarded":
		case "pending":
			return nil, &refusal{fmt.Sprintf("the call to sink %s is still to be sent, and nothing was done: wait until it is delivered; one that fails is parked, and `onlyonce parked discard` gives it up", oneLine(r.Sink))}
		default:
			id := ""
			if r.Place == "parked" {
				id = fmt.Sprintf(" -id %d", r.ID)
			}
			return nil, &refusal{fmt.Sprintf("the call to sink %s is parked (%s) and may still be sent, and nothing was done: give it up first with `onlyonce parked discard%s`", oneLine(r.Sink), r.State, id)}
		}
	}
	if done {
		return nil, &nothing{fmt.Sprintf("The call %s was erased already: nothing was changed.", *q.key)}
	}
	return &erased{Key: *q.key, Rows: rows}, nil
}

// differs: a call that was settled once stays so.
func (q *erasure) differs(_, _ *erased) bool { return false }

func (q *erasure) do(ctx context.Context, tx pgx.Tx, now *erased) (*erased, error) {
	ids, keys := map[string][]int64{}, []string{}
	for _, r := range now.Rows {
		if r.Key != nil {
			keys = append(keys, *r.Key)
		}
		ids[r.Place] = append(ids[r.Place], r.ID)
	}
	if _, err := tx.Exec(ctx, eraseLogSQL, ids["log"], keys); err != nil {
		return nil, err
	}
	_, err := tx.Exec(ctx, eraseParkedSQL, ids["parked"])
	return now, err
}

func (q *erasure) write(a *app, d *erased) {
	var cells [][]string
	for _, r := range d.Rows {
		cells = append(cells, []string{r.Place, number(r.ID), r.Sink, r.State, number(r.Bytes)})
	}
	writeTable(a.out, []string{"STORED IN", "ID", "SINK", "STATE", "BYTES"}, cells)
	_, _ = fmt.Fprintln(a.out, "Erase the body, and what the remote answered. It cannot be brought back, and the call cannot be sent again.")
}
