package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	defaultLimit = 100
	mostLimit    = 10000
	// Characters of an error that are shown to people and in JSON: it may be a whole stack.
	errorShown, errorJSON = 60, 1000
)

// parkedSQL lists what is set aside, newest first. In: scope, kind, state (each may be null: any), how many rows, sink, name, key, topic, partition, offset (null: any). Walks
// the primary key backwards until it has that many. Bodies and headers are not read; errors are cut, they may be stacks.
const parkedSQL = `
select id, kind, state, reason, tenant, scope, topic, partition, "offset", sink, call_name as name,
       attempts, left(error, 4000) as error, parked_at, settled_at
  from onlyonce.parked
 where ($1::text is null or scope = $1) and ($2::text is null or kind = $2) and ($3::text is null or state = $3)
   and ($5::text is null or sink = $5) and ($6::text is null or call_name = $6)
   and ($7::uuid is null or key = $7) and ($8::text is null or topic = $8) and ($9::integer is null or partition = $9) and ($10::bigint is null or "offset" = $10)
 order by id desc limit $4`

type parkedRow struct {
	ID        int64      `json:"id"`
	Kind      string     `json:"kind"`
	State     string     `json:"state"`
	Reason    string     `json:"reason"`
	Tenant    string     `json:"tenant"`
	Scope     string     `json:"scope"`
	Topic     *string    `json:"topic"`
	Partition *int32     `json:"partition"`
	Offset    *int64     `json:"offset"`
	Sink      *string    `json:"sink"`
	Name      *string    `json:"name"`
	Attempts  int32      `json:"attempts"`
	Error     string     `json:"error"`
	ParkedAt  time.Time  `json:"parked_at"`
	SettledAt *time.Time `json:"settled_at"`
}

// origin is where the row came from: a position in Kafka, or a call.
func (r *parkedRow) origin() string {
	switch {
	case r.Topic != nil && r.Partition != nil && r.Offset != nil:
		return fmt.Sprintf("%s/%d@%d", *r.Topic, *r.Partition, *r.Offset)
	case r.Sink != nil && r.Name != nil:
		return *r.Sink + "/" + *r.Name
	}
	return ""
}

func parkedListCommand() command {
	return command{
		name:    "parked list",
		args:    "[-postgres URL] [-scope S] [-kind KIND] [-state STATE] [-sink S] [-name N] [-limit N] [-json]",
		summary: "list what was set aside: messages, calls and events",
		help: `
Lists what was set aside because it could not be applied or sent, newest first. ORIGIN is topic/partition@offset of
a message, or sink/name of an outbound call. Bodies and headers are not shown. It changes nothing.

States: waiting (for an operator), retrying, blocked (behind another one of its ordering key), reconcile (a call whose
outcome is unknown), resolved, discarded.

With -json, one object a line:
  id, kind, state, reason, tenant, scope, attempts
  topic, partition, offset   of a message, else null
  sink, name                 of a call, else null
  error                      its first line, at most 1000 characters
  parked_at, settled_at      times; settled_at is null until it is resolved or discarded`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address, asJSON := postgresVar(fs), jsonVar(fs)
			var scope, kind, state, sink, name *string
			var limit *int64
			textVar(fs, &scope, "scope", "only rows of the scope `S`")
			choiceVar(fs, &kind, "kind", "only rows of one `KIND`: message, call or event", "message", "call", "event")
			choiceVar(fs, &state, "state", "only rows in one `STATE`: waiting, retrying, blocked, reconcile, resolved or discarded",
				"waiting", "retrying", "blocked", "reconcile", "resolved", "discarded")
			textVar(fs, &sink, "sink", "only calls to the sink `S`")
			textVar(fs, &name, "name", "only calls of the name `N`")
			numberVar(fs, &limit, "limit", fmt.Sprintf("at most `N` rows, from 1 to %d (default %d)", mostLimit, defaultLimit), 1, mostLimit)
			return func(ctx context.Context, a *app) error {
				n := int64(defaultLimit)
				if limit != nil {
					n = *limit
				}
				var rows []parkedRow
				err := a.readSnapshot(ctx, *address, "reading parked rows", func(ctx context.Context, tx pgx.Tx) (err error) {
					rows, err = collect[parkedRow](ctx, tx, parkedSQL, scope, kind, state, n+1, sink, name, nil, nil, nil, nil) // one more tells that there are more
					return err
				})
				if err != nil {
					return err
				}
				return a.writeParked(rows, int(n), *asJSON)
			}
		},
	}
}

func (a *app) writeParked(rows []parkedRow, limit int, asJSON bool) error {
	more := len(rows) > limit
	rows = rows[:min(len(rows), limit)]
	var cells [][]string
	for i := range rows {
		r := &rows[i]
		utc(&r.ParkedAt)
		utc(r.SettledAt)
		if asJSON {
			r.Error = firstLine(r.Error, errorJSON)
			if err := writeJSON(a.out, r); err != nil {
				return err
			}
			continue
		}
		cells = append(cells, []string{number(r.ID), r.Kind, r.State, r.Reason, r.Scope, r.origin(), instant(r.ParkedAt),
			number(int64(r.Attempts)), firstLine(r.Error, errorShown)})
	}
	switch {
	case len(rows) == 0:
		a.complain("nothing is parked that this asks for")
	case !asJSON:
		writeTable(a.out, []string{"ID", "KIND", "STATE", "REASON", "SCOPE", "ORIGIN", "PARKED AT", "ATTEMPTS", "ERROR"}, cells)
	}
	if more {
		if err := a.out.Flush(); err != nil {
			return err
		}
		a.complain("there are more: -limit %d was reached", limit)
	}
	return nil
}
