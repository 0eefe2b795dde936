package main

import (
	"context"
	"flag"
	"fmt"
	"reflect"
	"strings"

	"github.com/google/uuid"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

func explainCommand() command {
	return command{
		name: "explain",
		args: "[-postgres URL] (KEY [-scope S [-tenant T] [-topic T] [-replay N] [-provider P]] | -topic " +
			"T -partition N -offset O [-scope S]) [-all] [-json]",
		operand: true,
		summary: "show what became of a message, webhook, call or request",
		json:    []reflect.Type{reflect.TypeFor[ops.KeyReport](), reflect.TypeFor[ops.PositionReport]()},
		help: `
Tells what the database holds of one message, webhook, call or request: whether it was applied, its
calls, its parked rows, and what a copy would be. It guesses nothing and changes nothing, and works
on a standby too. -all shows the rest: in which segment and transaction the key was claimed, all
calls of that transaction, how long keys are remembered, and the open points.

KEY is a message's id (with -topic where its ids count within their topic, and -replay for the claim
in that replay), a webhook's id as its sender knows it (-scope webhook/ENDPOINT; -provider for a
provider of your own of which nothing is stored yet), or a request's Idempotency-Key (-scope "http
POST /v1/charges"). Without -scope it is looked for in the scopes of all consumers, endpoints and
queues, among all requests, and among the events that were set aside. A UUID without -scope is a
stored key, as other commands show it, or the idempotency key of a call; if nothing is stored under
it, it is looked for as an id. A KEY that begins with a dash follows "--".

The first sentence says what became of it, and the last one is the next command, if there is anything to do.

A key that is not there was never claimed, or was forgotten, or its claim has not committed. For
each scope it says whether a copy that comes now would be applied, or found to be a duplicate.

With -topic, -partition and -offset: whether each cursor has passed the offset, its batch, the
parked rows of that position, and the event if the topic is a stream.

Examples:
  onlyonce explain order-118 -scope stock
  onlyonce explain 6a1f0b52-93c1-8d0e-a3b4-0f1e2d3c4b5a
  onlyonce explain -topic orders -partition 3 -offset 4711`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			address := postgresVar(fs)
			asJSON := jsonVar(fs)
			var q ops.ExplainQuestion
			fieldsVar(fs, operate.ExplainFields(&q))
			all := fs.Bool("all",
				false, "show everything: segments, transactions, all calls of the transaction, open points")
			return func(ctx context.Context, a *app) error {
				q.CountLimit = a.countLimit
				key := show.Text(a.operand)
				switch {
				case q.Scope == "" && uuid.Validate(key) == nil:
					q.Key = key
				default:
					q.ID = key
				}
				if a.operand == nil && !q.OfPosition() {
					return usagef("missing: KEY, or -topic, -partition and -offset")
				}
				if err := decided(q.Check()); err != nil {
					return err
				}
				if q.OfPosition() {
					write := func(r *ops.PositionReport) error { return a.writePosition(r, *all) }
					return explain(ctx, a, *address, "looking at the position", *asJSON, &q, ops.ExplainPosition, write)
				}
				write := func(r *ops.KeyReport) error { return a.writeKey(r, q.ID, *all) }
				return explain(ctx, a, *address, "looking for the key", *asJSON, &q, ops.ExplainKey, write)
			}
		},
	}
}

// explain asks a question and shows the answer.
func explain[R any](ctx context.Context, a *app, address, what string, asJSON bool, q *ops.ExplainQuestion,
	ask func(context.Context, ops.DB, ops.ExplainQuestion) (*R, error), write func(*R) error) error {
	var r *R
	err := a.ask(ctx, address, what, func(ctx context.Context, db ops.DB) (err error) {
		r, err = ask(ctx, db, *q)
		return err
	})
	k, ofKey := any(r).(*ops.KeyReport)
	nothing := err == nil && ofKey && k.Key == ""
	if err != nil || asJSON && !nothing {
		if err == nil {
			err = a.writeJSON(r)
		}
		return err
	}
	return write(r)
}

// elsewhere says where an id is that was looked for in all scopes.
func (a *app) elsewhere(r *ops.KeyReport, id string) error {
	if len(r.Found) == 0 {
		tried := "there is no scope yet"
		if len(r.Scopes) > 0 {
			tried = "these were tried: " + strings.Join(r.Scopes, ", ")
		}
		return &refusal{fmt.Sprintf("nothing is stored of the id %q in any scope (%s). Say -scope to see "+
			"since when that is known, or with a tenant -tenant too", id, tried)}
	}
	a.say("Several scopes have the id:")
	for i := range r.Found {
		a.paste(cell(operate.ExplainCommand(&r.Found[i])))
	}
	return &refusal{"choose one with -scope"}
}

func (a *app) writeKey(r *ops.KeyReport, id string, all bool) error {
	if r.Key == "" {
		return a.elsewhere(r, id)
	}
	a.say("%s", cell(operate.KeyName(r)))
	for _, s := range operate.ExplainedKey(r) {
		a.say("%s", cell(s))
	}
	if len(r.Call) > 0 {
		a.say("\nIt is the key of a call:")
		writeRows(a, operate.StoredColumns, r.Call)
	}
	a.writeExplainedCalls(r.Calls, all)
	a.writeExplainedParked(r.Parked)
	if !all && len(r.Claims) > 0 {
		a.say("\n-all shows in which segment and transaction it was claimed, and %s.",
			show.Count(int64(len(r.NotKnown)), "open point"))
		return nil
	}
	for i := range r.Claims {
		a.say("")
		a.writeWhole(operate.WholeClaim(&r.Claims[i]), nil)
	}
	for _, s := range operate.KeyDetails(r) {
		a.say("%s", cell(s))
	}
	a.writeNotKnown(r.NotKnown)
	return nil
}

// writeExplainedCalls shows the calls whose keys derive from the message, or all.
func (a *app) writeExplainedCalls(calls []ops.ExplainedCall, all bool) {
	own := calls
	if !all {
		own = operate.OwnCalls(calls)
	}
	switch {
	case len(calls) == 0:
		return
	case len(own) < len(calls):
		a.say("\nIts calls: %d; %d more of the same transaction, which may be of other messages: -all shows them",
			len(own), len(calls)-len(own))
	default:
		a.say("\nCalls of that transaction: %d%s", len(calls), more(len(calls)))
	}
	writeRows(a, operate.ExplainedCallColumns, own)
}

func more(n int) string {
	if n == reports.ExplainLimit {
		return ", and perhaps more"
	}
	return ""
}

func (a *app) writeExplainedParked(parked []ops.ParkedRow) {
	if len(parked) > 0 {
		a.say("\nParked: %d%s", len(parked), more(len(parked)))
		writeRows(a, operate.ParkedColumns, parked)
	}
}

func (a *app) writeNotKnown(open []string) {
	if len(open) > 0 {
		a.say("\nNot known:")
	}
	for _, s := range open {
		a.say("  - %s", s)
	}
}

func (a *app) writePosition(r *ops.PositionReport, all bool) error {
	a.say("%s, partition %d, offset %d", cell(r.Topic), r.Partition, r.Offset)
	if len(r.Cursors) == 0 {
		a.say("This database has no cursor for it.")
	}
	for i := range r.Cursors {
		c := &r.Cursors[i]
		a.say("\n%s", cell(operate.CursorFate(c)))
		if batch := operate.CursorBatch(c); batch != "" {
			a.say("%s", batch)
		}
		a.writeExplainedCalls(c.Calls, all)
	}
	a.writeExplainedParked(r.Parked)
	if e := r.Event; e != nil {
		erased := ""
		tenant := ""
		if e.ErasedAt != nil {
			erased = ", erased at " + show.Instant(*e.ErasedAt)
		}
		if e.Tenant != "" {
			tenant = ", tenant " + cell(e.Tenant)
		}
		a.say("\nEvent %s%s, appended at %s%s. Its id was claimed then: for that claim, give onlyonce "+
			"explain the id and the -scope that appended it.", cell(e.ID), tenant, show.Instant(e.AppendedAt), erased)
	}
	a.writeNotKnown(r.NotKnown)
	return nil
}
