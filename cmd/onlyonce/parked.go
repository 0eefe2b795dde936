package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/onlyonce/onlyonce/ops"
)

// errorShown is how many characters of an error a table shows.
const errorShown = 60

// originOf returns where a parked row came from: a position in Kafka, or a call.
func originOf(r *ops.ParkedItem) string {
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
		summary: "list messages, calls and events that were set aside",
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
			numberVar(fs, &limit, "limit", fmt.Sprintf("at most `N` rows, from 1 to %d (default %d)", ops.MostLimit, ops.DefaultLimit), 1, ops.MostLimit)
			return func(ctx context.Context, a *app) error {
				f := ops.ParkedListFilter{Scope: text(scope), Kind: text(kind), State: text(state), Sink: text(sink), Name: text(name), Limit: limitOf(limit)}
				var rows []ops.ParkedItem
				var more bool
				err := a.ask(ctx, *address, "reading parked rows", func(ctx context.Context, db ops.DB) (err error) {
					rows, more, err = ops.Parked(ctx, db, f)
					return err
				})
				if err != nil {
					return err
				}
				return a.writeParked(rows, more, f.Limit, *asJSON)
			}
		},
	}
}

var parkedColumns = []string{"ID", "KIND", "STATE", "REASON", "SCOPE", "ORIGIN", "PARKED AT", "ATTEMPTS", "ERROR"}

func (a *app) writeParked(rows []ops.ParkedItem, more bool, limit int, asJSON bool) error {
	var cells [][]string
	for i := range rows {
		r := &rows[i]
		if asJSON {
			if err := a.writeJSON(r); err != nil {
				return err
			}
			continue
		}
		cells = append(cells, []string{number(r.ID), r.Kind, r.State, r.Reason, r.Scope, originOf(r), instant(r.ParkedAt),
			number(int64(r.Attempts)), firstLine(r.Error, errorShown)})
	}
	switch {
	case len(rows) == 0:
		a.complain("nothing is parked that this asks for")
	case !asJSON:
		a.table(parkedColumns, cells)
	}
	if more {
		return a.thereAreMore(limit)
	}
	return nil
}

// thereAreMore prints that a list was cut.
func (a *app) thereAreMore(limit int) error {
	if err := a.out.Flush(); err != nil {
		return err
	}
	a.complain("there are more: -limit %d was reached", limit)
	return nil
}
