package main

import (
	"context"
	"flag"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onlyonce/onlyonce/internal/guard"
	"github.com/onlyonce/onlyonce/migrations"
)

// countLimit bounds counts of the log of calls, which may be long and whose length nobody waits for in an incident.
const countLimit = 5 * time.Second

// parkedCountsSQL counts what is set aside. One row for each (kind, reason, state). Reads the whole table, bodies
// apart (they lie out of line): it holds failures, and is small where things are well.
const parkedCountsSQL = `
select kind, reason, state, count(*) as count, min(parked_at) as oldest
  from onlyonce.parked
 group by kind, reason, state order by kind, reason, state`

// limitSQL bounds the statements that follow in the (sub)transaction.
const limitSQL = `select set_config('statement_timeout', $1, true)`

// relaysSQL lists who sends the calls of each sink, by the database's clock. One row for a sink's lanes together.
const relaysSQL = `
select l.sink, max(e.epoch) as epoch, max(e.until) as until,
       bool_or((e.nonce is not null and e.until > clock_timestamp() and e.until <= clock_timestamp() + interval '1 hour') is true) as held, count(*) as lanes,
       count(*) filter (where e.nonce is not null and e.until > clock_timestamp() and e.until <= clock_timestamp() + interval '1 hour') as lanes_held
  from onlyonce.lanes l join onlyonce.leases e on e.id = l.id
 group by l.sink order by l.sink`

// membersSQL lists the leases by which relays say that they list a sink: member/SINK/N, for as long as they renew them.
const membersSQL = `
select name from onlyonce.leases
 where starts_with(name, 'member/') and until > clock_timestamp() and until <= clock_timestamp() + interval '1 hour'`

type parkedCount struct {
	Kind   string    `json:"kind"`
	Reason string    `json:"reason"`
	State  string    `json:"state"`
	Count  int64     `json:"count"`
	Oldest time.Time `json:"oldest"`
}

type outboxCount struct {
	Sink             string   `json:"sink"`
	Count            int64    `json:"count"`
	OldestAgeSeconds *float64 `json:"oldest_age_seconds"`
}

type relayRow struct {
	Sink  string     `json:"sink"`
	Epoch int64      `json:"epoch"`
	Until *time.Time `json:"until"`
	Held  bool       `json:"held"`

	Lanes     int64 `json:"lanes"`
	LanesHeld int64 `json:"lanes_held"`
	Members   int64 `json:"members" db:"-"` // relays that list it
}

type statusReport struct {
	SchemaVersion int           `json:"schema_version"`
	Cursors       []cursorRow   `json:"cursors"`
	Parked        []parkedCount `json:"parked"`
	Outbox        []outboxCount `json:"outbox"`
	OutboxCounted bool          `json:"outbox_counted"`
	Relays        []relayRow    `json:"relays"`
	Owners        []ownerRow    `json:"owners"`
}

func statusCommand() command {
	return command{
		name:    "status",
		args:    "[-postgres URL] [-json]",
		summary: "show where the work stands: cursors, parked work, outbox, relays",
		help: `
Shows, from one snapshot of the database: the version of the schema; each cursor, that is the position in a
partition; how much is parked; how many outbound calls are still to be sent, with the age of the oldest; and which relays hold their sink. It changes nothing and works on a standby too.

A cursor's group is the Kafka group that owns it; "-" means that the next one to come will. "clean" says that
the last owner let go in order; while somebody works it reads "no". "attempts" are those at a message that stands
alone because it failed, with its offset. STATE says whether a cursor is retired, paused or replayed: a retired one
stands still for good, and is counted apart.

Processes are the consumers that work on this database, as each has written itself, at most 10 s ago: how many
partitions it owns, how far it is behind the log in messages, when it committed a batch last, and how many of its
partitions are halted, with a line for each; one that waits for an open Kafka transaction has a line too. "silent" is a process that has not written for 30 s: it was killed, or
cannot reach this database. Kafka is not asked.

With -json, one object:
  schema_version  number
  cursors         list, as in "onlyonce cursor show -json"
  parked          list of {kind, reason, state, count, oldest}
  outbox          list of {sink, count, oldest_age_seconds}: calls that are still to be sent
  outbox_counted  false: counting them took over 5 s, so outbox is empty
  relays          list of {sink, epoch, until (null: given back), held (until has not come), lanes, lanes_held, members (relays that
                  list it)}; of a sink's lanes the highest epoch, the latest until, and whether any is held
  owners          list of {scope, host, pid, started_at, seen_at, seen_age_seconds, partitions}; partitions is a list of {topic,
                  partition, epoch, position, high_watermark, lag, last_stable, paused, halted, detail, halted_for,
                  last_batch_age, waiting_for}, where what is absent is false or not known, and ages are in seconds at seen_at
"onlyonce outbox status" shows more of the outbox.`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address, asJSON := postgresVar(fs), jsonVar(fs)
			return func(ctx context.Context, a *app) error {
				var report *statusReport
				err := a.readSnapshot(ctx, *address, "reading the status", func(ctx context.Context, tx pgx.Tx) (err error) {
					report, err = readStatus(ctx, tx, a.countLimit)
					return err
				})
				if err != nil {
					return err
				}
				if *asJSON {
					return writeJSON(a.out, report)
				}
				a.writeStatus(report)
				return a.writeOwners(report.Owners)
			}
		},
	}
}

func readStatus(ctx context.Context, tx pgx.Tx, limit time.Duration) (*statusReport, error) {
	var r statusReport
	var err error
	if r.SchemaVersion, err = migrations.Version(ctx, tx); err != nil {
		return nil, err
	}
	if r.Cursors, err = readCursors(ctx, tx, cursorFilter{}); err != nil {
		return nil, err
	}
	if r.Parked, err = collect[parkedCount](ctx, tx, parkedCountsSQL); err != nil {
		return nil, err
	}
	for i := range r.Parked {
		utc(&r.Parked[i].Oldest)
	}
	if r.Relays, err = collect[relayRow](ctx, tx, relaysSQL); err != nil {
		return nil, err
	}
	type member struct{ Name string }
	members, err := collect[member](ctx, tx, membersSQL)
	if err != nil {
		return nil, err
	}
	for i := range r.Relays {
		l := &r.Relays[i]
		utc(l.Until)
		for _, m := range members {
			if strings.HasPrefix(m.Name, "member/"+url.PathEscape(l.Sink)+"/") {
				l.Members++
			}
		}
	}
	if r.Owners, err = collect[ownerRow](ctx, tx, ownersSQL); err != nil {
		return nil, err
	}
	for i := range r.Owners {
		utc(&r.Owners[i].StartedAt)
		utc(&r.Owners[i].SeenAt)
	}
	waiting, err := collectWithin[waitingCalls](ctx, tx, limit, waitingCallsSQL, nil)
	if err != nil {
		return nil, err
	}
	r.OutboxCounted = waiting != nil
	r.countCalls(waiting)
	return &r, nil
}

// countCalls adds up, for each sink, the calls that wait in its lanes.
func (r *statusReport) countCalls(waiting []waitingCalls) {
	r.Outbox = []outboxCount{}
	for _, w := range waiting {
		i := slices.IndexFunc(r.Outbox, func(o outboxCount) bool { return o.Sink == w.Sink })
		if i < 0 {
			i = len(r.Outbox)
			r.Outbox = append(r.Outbox, outboxCount{Sink: w.Sink})
		}
		o := &r.Outbox[i]
		o.Count += w.Calls
		if o.OldestAgeSeconds == nil || w.Age != nil && *w.Age > *o.OldestAgeSeconds {
			o.OldestAgeSeconds = w.Age
		}
	}
	slices.SortFunc(r.Outbox, func(a, b outboxCount) int { return strings.Compare(a.Sink, b.Sink) })
}

// collectWithin is collect by a query of which nobody knows how long it takes: nil when that was longer than limit. It does so in a subtransaction, so
// that tx goes on either way.
func collectWithin[T any](ctx context.Context, tx pgx.Tx, limit time.Duration, sql string, args ...any) (found []T, err error) {
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, limitSQL, guard.Millis(limit)); err != nil {
			return err
		}
		found, err = collect[T](ctx, tx, sql, args...)
		return err
	})
	if guard.SQLState(err) == codeCanceled {
		return nil, nil
	}
	return found, err
}

// collect reads rows whose columns have the names of T's fields. Never nil without an error.
func collect[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[T])
}

func (a *app) writeStatus(r *statusReport) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format, args...) }
	say("schema version %d\n", r.SchemaVersion)

	outOfUse := 0
	for i := range r.Cursors {
		if r.Cursors[i].RetiredAt != nil {
			outOfUse++
		}
	}
	say("\nCursors: %d%s\n", len(r.Cursors)-outOfUse, some(outOfUse, " and %d retired"))
	var rows [][]string
	for _, c := range r.Cursors {
		rows = append(rows, []string{c.Scope, c.Topic, strconv.Itoa(int(c.Partition)), number(c.Position), orDash(c.Group),
			number(c.Epoch), yesNo(c.Clean), attempts(&c), c.State()})
	}
	a.section([]string{"SCOPE", "TOPIC", "PARTITION", "POSITION", "GROUP", "EPOCH", "CLEAN", "ATTEMPTS", "STATE"}, rows)

	total, rows := int64(0), nil
	for _, p := range r.Parked {
		total += p.Count
		rows = append(rows, []string{p.Kind, p.Reason, p.State, number(p.Count), instant(p.Oldest)})
	}
	say("\nParked: %d\n", total)
	a.section([]string{"KIND", "REASON", "STATE", "COUNT", "OLDEST"}, rows)

	pending, rows := int64(0), nil
	for _, o := range r.Outbox {
		pending += o.Count
		age := ""
		if o.OldestAgeSeconds != nil {
			age = time.Duration(*o.OldestAgeSeconds * float64(time.Second)).Round(time.Second).String()
		}
		rows = append(rows, []string{o.Sink, number(o.Count), age})
	}
	say("\nOutbox: %d pending\n", pending)
	a.section([]string{"SINK", "COUNT", "OLDEST"}, rows)
	if !r.OutboxCounted {
		say("pending calls are left out: counting them took over %v\n", a.countLimit)
	}

	rows = nil
	for _, l := range r.Relays {
		until := ""
		if l.Until != nil {
			until = instant(*l.Until)
		}
		held := fmt.Sprintf("%d of %d lanes", l.LanesHeld, l.Lanes)
		switch {
		case l.Members > 0:
			held += fmt.Sprintf(", by %d relays", l.Members)
		case l.LanesHeld == 0:
			held += ", by no relay"
		}
		rows = append(rows, []string{l.Sink, number(l.Epoch), until, held})
	}
	say("\nSinks: %d\n", len(r.Relays))
	a.section([]string{"SINK", "EPOCH", "UNTIL", "HELD"}, rows)
}

// section writes a table unless it is empty.
func (a *app) section(header []string, rows [][]string) {
	if len(rows) > 0 {
		writeTable(a.out, header, rows)
	}
}

// some is text about n where there are any.
func some(n int, text string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(text, n)
}

func number(n int64) string { return strconv.FormatInt(n, 10) }
