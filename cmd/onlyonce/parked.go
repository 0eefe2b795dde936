package main

import (
	"context"
	"flag"
	"fmt"
	"reflect"
	"strings"

	"github.com/onlyonce/onlyonce/internal/operate"
	"github.com/onlyonce/onlyonce/internal/parked"
	"github.com/onlyonce/onlyonce/internal/reports"
	"github.com/onlyonce/onlyonce/internal/show"
	"github.com/onlyonce/onlyonce/ops"
)

// errorShown is how many characters of an error a table shows.
const errorShown = 60

func parkedListCommand() command {
	return command{
		name:    "parked list",
		args:    "[-postgres URL] [-all] [-scope S] [-kind KIND] [-state STATE] [-parked-for R] [-error TEXT] [-sink S] [-name N] [-limit N] [-json]",
		summary: "list messages, calls and events that were set aside",
		json:    []reflect.Type{reflect.TypeFor[ops.ParkedItem]()},
		lines:   true,
		help: `
Lists what was set aside because it could not be applied or sent, and is not settled, oldest first. If there is more than one reason, it counts
the rows by reason, with the commands for those that wait for an operator. The last line counts all. ORIGIN is topic/partition@offset of
a message, or sink/name of an outbound call; AGE is since it was parked. Bodies and headers are not shown. It changes nothing.

States: waiting (for an operator), retrying, blocked (behind another one of its ordering key), reconcile (a call whose
outcome is unknown); and of settled rows resolved and discarded. With -all, or with such a -state, settled rows are listed too, and the newest come first.`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			q := &listing{}
			address, asJSON := postgresVar(fs), jsonVar(fs)
			q.flags(fs)
			return func(ctx context.Context, a *app) error { return a.listParked(ctx, *address, q, *asJSON) }
		},
	}
}

// listing holds the operator's flags of a list of parked rows.
type listing struct {
	all                                    bool
	scope, kind, state, reason, sink, name *string
	errorPrefix                            *string
	limit                                  *int64
}

func (q *listing) flags(fs *flag.FlagSet) {
	fs.BoolVar(&q.all, "all", false, "settled rows too, newest first")
	textVar(fs, &q.scope, "scope", "only rows of the scope `S`")
	choiceVar(fs, &q.kind, "kind", "only rows of one `KIND`: message, call or event", "message", "call", "event")
	choiceVar(fs, &q.state, "state", "only rows in one `STATE`: waiting, retrying, blocked, reconcile, resolved or discarded",
		"waiting", "retrying", "blocked", "reconcile", "resolved", "discarded")
	choiceVar(fs, &q.reason, "parked-for", "only rows that were parked for the reason `R`: "+strings.Join(parked.Reasons, ", "), parked.Reasons...)
	textVar(fs, &q.errorPrefix, "error", "only rows whose error begins with `TEXT`")
	textVar(fs, &q.sink, "sink", "only calls to the sink `S`")
	textVar(fs, &q.name, "name", "only calls of the name `N`")
	numberVar(fs, &q.limit, "limit", fmt.Sprintf("at most `N` rows, from 1 to %d (default %d)", reports.MostLimit, reports.DefaultLimit), 1, reports.MostLimit)
}

func (q *listing) filter() ops.ParkedListFilter {
	state := text(q.state)
	return ops.ParkedListFilter{Scope: text(q.scope), Kind: text(q.kind), State: state, Reason: text(q.reason), ErrorPrefix: text(q.errorPrefix), Sink: text(q.sink), Name: text(q.name),
		Unsettled: !q.all && state != "resolved" && state != "discarded", Limit: limitOf(q.limit)}
}

func (a *app) listParked(ctx context.Context, address string, q *listing, asJSON bool) error {
	f := q.filter()
	var rows []ops.ParkedItem
	var more bool
	var totals *ops.ParkedTotals
	err := a.ask(ctx, address, "reading parked rows", func(ctx context.Context, db ops.DB) (err error) {
		if rows, more, err = ops.Parked(ctx, db, f); err == nil && !asJSON {
			totals, err = ops.ParkedCounts(ctx, db, ops.ParkedQuestion{Filter: f, CountLimit: a.countLimit})
		}
		return err
	})
	if err != nil {
		return err
	}
	if asJSON {
		for i := range rows {
			if err := a.writeJSON(&rows[i]); err != nil {
				return err
			}
		}
	} else {
		a.section(operate.Table(rows))
		a.writeParkedSums(q, f.Unsettled, len(rows), totals)
	}
	if more {
		return a.thereAreMore(f.Limit)
	}
	return nil
}

// writeParkedSums counts the parked rows by reason and state, and says what is not listed.
func (a *app) writeParkedSums(q *listing, unsettled bool, listed int, t *ops.ParkedTotals) {
	states := map[string]int64{}
	for i := range t.Groups {
		states[t.Groups[i].State] += t.Groups[i].Count
	}
	if listed > 0 && unsettled && q.name == nil { // the commands of a group are for calls of all names
		a.writeGroups(t.Groups)
	}
	var parts []string
	for _, s := range []string{"waiting", "reconcile", "retrying", "blocked"} {
		if n := states[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	last := strings.Join(parts, ", ")
	switch {
	case !t.Counted:
		last = fmt.Sprintf("not counted: that took over %v", a.countLimit)
	case last == "":
		last = "Nothing is parked and not settled"
		if q.state != nil || q.kind != nil || q.reason != nil || q.errorPrefix != nil || q.sink != nil || q.name != nil || q.scope != nil {
			last = "No matching parked rows"
		}
	}
	switch {
	case !unsettled:
	case t.Settled != nil && *t.Settled > 0:
		last += strings.Replace(settledText(t), ", ", "; ", 1) + " not shown (-all)"
	case t.Settled == nil:
		last += "; settled rows not shown (-all)"
	}
	a.say("%s", last)
}

// writeGroups counts rows by reason, with the commands for those that wait for an operator.
func (a *app) writeGroups(groups []ops.ParkedCount) {
	for i := range groups {
		g := &groups[i]
		at := "scope " + g.Scope
		if g.Sink != nil {
			at = "sink " + *g.Sink
		}
		a.say("")
		a.say("%s, %s, %s: %s", show.Count(g.Count, g.Kind), g.State, g.Reason, cell(at))
		a.writeSteps(operate.Next(g))
	}
	if len(groups) > 0 {
		a.say("\nOne row whole: onlyonce parked show ID")
	}
}

// thereAreMore prints that a list was cut.
func (a *app) thereAreMore(limit int) error {
	if err := a.out.Flush(); err != nil {
		return err
	}
	a.complain("there are more: -limit %d was reached", limit)
	return nil
}
